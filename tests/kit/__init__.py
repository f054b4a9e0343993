"""What the tests are written with; `maniflex.testing` holds what users get.

Servers and clients
    servers            a started server: `started`
    http               a client of a server in this process: `serving`; its answers: `data_of`, `error_of`
    asgi               one request handed to an ASGI application: `Call`, `send`
    sockets            a server on a port, in the loop of the test or in a thread; requests as bytes
    processes          `maniflex` commands, serving processes, programs to talk to, processes to kill
    waiting            waiting for a condition: `eventually` in a loop, `until` without one
Databases
    databases          the files whose tests run on SQLite alone
    postgres           databases of the shared PostgreSQL server, statements behind a server's back
    private_postgres   a PostgreSQL server of a test's own, to stop, crash and freeze; its standby
    replicas           a primary and its standby, which shows commits as late as a test says
    overlapping_reads  reads of a SQLite file without a gap
    tcp_relay          stands before PostgreSQL, cuts connections and falls silent
    schema             the schema as the database tells it, versions of a model, SQL that a refusal advises
    network_tools      HAProxy and PgBouncer, as the pages configure them
    acknowledged_load  writes, runs and messages through outages, each of which must be there once
    statements         the statements a server sends, their plans, answers that come in time
    nats_queue         the messages of a NATS queue, a NATS server of one's own
    redis_queue        the keys and the age of a Redis queue
Other services
    scripted_http      an HTTP server that answers what it is told to
    mail_server        a mail server with TLS, sign-in and refusals
    certificates       a certificate of a test's own
Files
    object_stores      buckets and containers on the servers that the tests run against
    local_files        files in a directory, and what is left in it
Durable work
    runs               the started server's `work`, handlers that succeed or fail
    outbox schedules scheduled_fields      a server with that part on an empty database
    machines           three servers whose clocks are moved by hand
    crowd              worker processes that fork, die and keep a ledger; they run `programs/workers.py`
    run_routes         a server with runs and its callers, for the tests of the routes
    panics             exceptions that are no `Exception`
    internals          the private parts of a server that tests look at
Applications
    declarations       models sealed without a server, and what stops a server
    notes              the least model, and a server of it
    shop               a small shop for many customers at once
    described_app      every field, relation and route that a description can show
    random_models random_queries           random applications, and requests for them
    random_features    random applications out of options, entries and features
    fuzz/              an application with one of everything, hostile requests, what all answers must hold
    doctor             what the doctor finds in a server, and a server in which it finds nothing
    docs               the pages of the documentation
    public_surface     the names, routes, tables, settings and commands that users rely on
"""
