"""The German texts of refusals: what a server says to clients who ask for German.

Keys are the English texts, with a name in braces for each part that differs.
"""

from __future__ import annotations

GERMAN = {
    # -- refusals as a whole
    "something went wrong": "es ist etwas schiefgegangen",
    "the body is not valid JSON": "der Inhalt ist kein gültiges JSON",
    "the body must be a JSON object": "der Inhalt muss ein JSON-Objekt sein",
    "the request body is empty": "die Anfrage hat keinen Inhalt",
    "the request body could not be read": "der Inhalt der Anfrage konnte nicht gelesen werden",
    "the request body arrived too slowly; send it again": (
        "der Inhalt der Anfrage kam zu langsam; bitte erneut senden"
    ),
    "the request body is too large": "der Inhalt der Anfrage ist zu groß",
    "the body is larger than {size} bytes": "der Inhalt ist größer als {size} Bytes",
    "the query string is not valid": "die Abfrage in der Adresse ist ungültig",
    "the query string is too long": "die Abfrage in der Adresse ist zu lang",
    "the query string is not UTF-8": "die Abfrage in der Adresse ist kein UTF-8",
    "fields were changed since, so the past cannot be compared by them": (
        "Felder wurden seitdem geändert, daher lässt sich die Vergangenheit nicht danach vergleichen"
    ),
    "the server failed to handle the request": "der Server konnte die Anfrage nicht bearbeiten",
    "the request could not be completed": "die Anfrage konnte nicht abgeschlossen werden",
    "the schedule is not valid": "der Zeitplan ist ungültig",
    "sign in first": "bitte zuerst anmelden",
    "the signature is missing or not valid": "die Signatur fehlt oder ist ungültig",
    "there is nothing here": "hier ist nichts",
    "the path has no such method": "diese Methode gibt es hier nicht",
    "this path speaks WebSocket": "dieser Pfad spricht WebSocket",
    "pages of this origin may not connect": "Seiten dieser Herkunft dürfen sich nicht verbinden",
    "a pattern is not well-formed": "ein Muster ist nicht wohlgeformt",
    "{pattern} is not yours to subscribe to": "{pattern} darf hier nicht abonniert werden",
    "no handler takes webhooks of this event": "für Webhooks dieses Ereignisses ist hier nichts zuständig",
    "this webhook came before": "dieser Webhook kam schon einmal",
    "the mail cannot be sent: {field}: {message}": "die E-Mail ist nicht versendbar: {field}: {message}",
    "is no address": "ist keine Adresse",
    "is the address of a recipient": "ist die Adresse eines Empfängers",
    "has a line break or another control character": "enthält einen Umbruch oder ein anderes Steuerzeichen",
    "names 1 to {count} recipients, with cc and bcc": "nennt 1 bis {count} Empfänger, mit cc und bcc",
    "a mail has at most {count} bytes": "eine E-Mail hat höchstens {count} Bytes",
    "this is not yours to do": "dazu fehlt die Berechtigung",
    "the file is not yours to use": "diese Datei darf hier nicht verwendet werden",
    "record not found": "Datensatz nicht gefunden",
    "no such path": "diesen Pfad gibt es nicht",
    "file not found": "Datei nicht gefunden",
    "the record has no file here": "der Datensatz hat hier keine Datei",
    "method not allowed": "Methode nicht erlaubt",
    "the write conflicts with stored data": "die Änderung widerspricht gespeicherten Daten",
    "other records still refer to this one": "andere Datensätze verweisen noch auf diesen",
    "the write collided with a concurrent one; try again": (
        "die Änderung stieß mit einer gleichzeitigen zusammen; bitte erneut versuchen"
    ),
    "a record refers to the file": "ein Datensatz verweist auf die Datei",
    "the file is being removed; upload it again": "die Datei wird gerade gelöscht; bitte erneut hochladen",
    "the record has changed since it was read": "der Datensatz wurde seit dem Lesen geändert",
    "the answer is too large; ask for fewer rows or fields": (
        "die Antwort ist zu groß; bitte weniger Zeilen oder Felder abfragen"
    ),
    "the answer is larger than the server allows": "die Antwort ist größer, als der Server erlaubt",
    "an export is csv, jsonl or xlsx": "ein Export ist csv, jsonl oder xlsx",
    "the export is too large": "der Export ist zu groß",
    "too many exports are running; try again later": (
        "es laufen zu viele Exporte; bitte später erneut versuchen"
    ),
    "send the body as application/json": "der Inhalt muss als application/json gesendet werden",
    "a compressed body is not accepted": "komprimierte Inhalte werden nicht angenommen",
    "one or more fields failed validation": "ein oder mehrere Felder sind ungültig",
    "a translation is missing": "eine Übersetzung fehlt",
    "the record is locked": "der Datensatz ist gesperrt",
    "the record is locked while {field} is {value}": (
        "der Datensatz ist gesperrt, solange {field} {value} ist"
    ),
    "the database could not complete the request": "die Datenbank konnte die Anfrage nicht abschließen",
    "the service behind these records failed": "der Dienst hinter diesen Datensätzen ist ausgefallen",
    "the service is temporarily unavailable": "der Dienst ist vorübergehend nicht erreichbar",
    "the access cannot be recorded right now": "der Zugriff kann gerade nicht aufgezeichnet werden",
    "the limit of requests cannot be checked right now": (
        "die Begrenzung der Anfragen kann gerade nicht geprüft werden"
    ),
    "the Idempotency-Key cannot be checked right now": "der Idempotency-Key kann gerade nicht geprüft werden",
    "the request took too long": "die Anfrage hat zu lange gedauert",
    "a value could not be encrypted": "ein Wert konnte nicht verschlüsselt werden",
    "a stored value could not be decrypted": "ein gespeicherter Wert konnte nicht entschlüsselt werden",
    "the server has no key for encrypted values": "der Server hat keinen Schlüssel für verschlüsselte Werte",
    "the form could not be read": "das Formular konnte nicht gelesen werden",
    'the form has no part "file"': "das Formular hat keinen Teil „file“",
    "the path names no file": "der Pfad nennt keine Datei",
    "the file is too large": "die Datei ist zu groß",
    "files of this type are not allowed here": "Dateien dieser Art sind hier nicht erlaubt",
    "the file ends before the range begins": "die Datei endet vor dem Beginn des Bereichs",
    "there is no such file": "diese Datei gibt es nicht",
    "there are too many files": "es sind zu viele Dateien",
    "the file storage could not complete the request": (
        "der Dateispeicher konnte die Anfrage nicht abschließen"
    ),
    "the server has no room for the file": "der Server hat keinen Platz für die Datei",
    "the server has no file storage": "der Server hat keinen Dateispeicher",
    "the file storage cannot sign upload URLs": (
        "der Dateispeicher kann keine Adressen zum Hochladen signieren"
    ),
    "the client went away": "der Client hat die Verbindung beendet",
    'you may not set "{field}"': "„{field}“ darf nicht gesetzt werden",
    "{message}; the first {count} are listed": "{message}; die ersten {count} sind aufgeführt",
    # -- what is wrong with one field
    'field "{field}" {message}': "Feld „{field}“ {message}",
    "the value {message}": "der Wert {message}",
    "{message}; did you mean '{name}'?": "{message}; ist „{name}“ gemeint?",
    "is required": "ist erforderlich",
    "does not exist": "gibt es nicht",
    "must not be null": "darf nicht null sein",
    "is not a known field": "ist kein bekanntes Feld",
    "must be text": "muss Text sein",
    "must not contain lone surrogates": "darf keine einzelnen Surrogate enthalten",
    "must have at least {count} characters": "muss mindestens {count} Zeichen haben",
    "must have at most {count} characters": "darf höchstens {count} Zeichen haben",
    "must match the pattern {pattern}": "muss dem Muster {pattern} entsprechen",
    "must be an integer": "muss eine ganze Zahl sein",
    "must fit in 64 bits": "muss in 64 Bit passen",
    "must be a number": "muss eine Zahl sein",
    "must be a finite number": "muss eine endliche Zahl sein",
    "must be a decimal number": "muss eine Dezimalzahl sein",
    "must be a decimal number, sent as text or as a whole number": (
        "muss eine Dezimalzahl sein, als Text oder als ganze Zahl gesendet"
    ),
    "must be true or false": "muss true oder false sein",
    "must be at least {limit}": "muss mindestens {limit} sein",
    "must be at most {limit}": "darf höchstens {limit} sein",
    "must be greater than {limit}": "muss größer als {limit} sein",
    "must be less than {limit}": "muss kleiner als {limit} sein",
    "must be a multiple of {number}": "muss ein Vielfaches von {number} sein",
    "must have at most {count} digits": "darf höchstens {count} Ziffern haben",
    "must have at most {count} decimals": "darf höchstens {count} Nachkommastellen haben",
    "must have at most {count} digits before the point": "darf höchstens {count} Ziffern vor dem Komma haben",
    "must be one of: {choices}": "muss eines davon sein: {choices}",
    "must be a UUID": "muss eine UUID sein",
    "must be base64 text": "muss base64-Text sein",
    "must have at least {count} bytes": "muss mindestens {count} Bytes haben",
    "must have at most {count} bytes": "darf höchstens {count} Bytes haben",
    "must be an object": "muss ein Objekt sein",
    "must be a list": "muss eine Liste sein",
    "must have at least {count} items": "muss mindestens {count} Einträge haben",
    "must have at most {count} items": "darf höchstens {count} Einträge haben",
    "must not contain itself": "darf sich nicht selbst enthalten",
    "must be an IP address": "muss eine IP-Adresse sein",
    "must be a URL: {reason}": "muss eine URL sein: {reason}",
    "must be a date and time like {example}": "muss ein Zeitpunkt wie {example} sein",
    "must be a date like {example}": "muss ein Datum wie {example} sein",
    "must be a time like {example}": "muss eine Uhrzeit wie {example} sein",
    "must be a time without zone, like {example}": "muss eine Uhrzeit ohne Zeitzone wie {example} sein",
    "must lie between the years 1 and 9999 in UTC": "muss zwischen den Jahren 1 und 9999 (UTC) liegen",
    "must not be finer than microseconds": "darf nicht feiner als Mikrosekunden sein",
    "must be a map from locales to texts": "muss eine Zuordnung von Sprachen zu Texten sein",
    "must have locales such as de or pt-BR as keys": "muss Sprachen wie de oder pt-BR als Schlüssel haben",
    "must have one text for each locale": "darf für jede Sprache nur einen Text haben",
    "must have at most {count} translations": "darf höchstens {count} Übersetzungen haben",
    "needs a text in one language at least": "braucht mindestens in einer Sprache einen Text",
    "needs a text in {locale}": "braucht einen Text in der Sprache {locale}",
    "must name one locale such as de or pt-BR": "muss genau eine Sprache wie de oder pt-BR nennen",
    "must be in one of: {locales}": "muss in einer dieser Sprachen sein: {locales}",
    "cannot be sent beside {name}": "kann nicht zusammen mit {name} gesendet werden",
    'is a relation; send the id as "{name}"': "ist eine Beziehung; die Id wird als „{name}“ gesendet",
    "is a relation, which a body cannot set": "ist eine Beziehung, die ein Inhalt nicht setzen kann",
    # -- queries
    "sort: {name} is not a field that can be sorted by": "sort: nach {name} kann nicht sortiert werden",
    "select: {name} is not a field": "select: {name} ist kein Feld",
    "include: {name} is not a relation that can be included": (
        "include: {name} kann nicht eingeschlossen werden"
    ),
    "filter: write it as field:operator:value": "filter: die Schreibweise ist Feld:Operator:Wert",
    "page: a whole number from 1 to {most}": "page: eine ganze Zahl von 1 bis {most}",
    "limit: a whole number; a page has at most {most} records": (
        "limit: eine ganze Zahl; eine Seite hat höchstens {most} Datensätze"
    ),
    "there is no parameter {name}": "es gibt keinen Parameter {name}",
    "locale: one code of a language such as de or pt-BR": "locale: ein Sprachcode wie de oder pt-BR",
    # -- bodies
    "the body is not valid JSON: {reason}": "der Inhalt ist kein gültiges JSON: {reason}",
    "the body has more than {count} values; send it in parts": (
        "der Inhalt hat mehr als {count} Werte; bitte in Teilen senden"
    ),
    "a whole number in the body is beyond 64 bits": "eine ganze Zahl im Inhalt passt nicht in 64 Bit",
    "a number in the body is out of range": "eine Zahl im Inhalt ist außerhalb des Bereichs",
    "a text in the body is not valid Unicode: half of a surrogate pair stands alone": (
        "ein Text im Inhalt ist kein gültiges Unicode: ein halbes Surrogatpaar steht allein"
    ),
    "a text in the body is not valid Unicode": "ein Text im Inhalt ist kein gültiges Unicode",
    "a text in the request is not valid Unicode": "ein Text in der Anfrage ist kein gültiges Unicode",
    "the body is nested too deeply": "der Inhalt ist zu tief verschachtelt",
    "text may not contain the NUL character": "Text darf das Zeichen NUL nicht enthalten",
    "the key {key} is given twice": "der Schlüssel {key} kommt zweimal vor",
    "Content-Length is not a number": "Content-Length ist keine Zahl",
    "the client disconnected": "der Client hat die Verbindung beendet",
    "the value cannot be stored as JSON: {reason}": (
        "der Wert kann nicht als JSON gespeichert werden: {reason}"
    ),
    "cannot be stored as JSON: {reason}": "kann nicht als JSON gespeichert werden: {reason}",
    "a value cannot be stored in its column": "ein Wert kann in seiner Spalte nicht gespeichert werden",
    "a value is too large for an index": "ein Wert ist zu groß für einen Index",
    "a number is outside the range the database can store": (
        "eine Zahl liegt außerhalb dessen, was die Datenbank speichern kann"
    ),
    "a text contains characters the database cannot store": (
        "ein Text enthält Zeichen, die die Datenbank nicht speichern kann"
    ),
    "a value is too large for the database": "ein Wert ist zu groß für die Datenbank",
    "a record this one refers to does not exist": "ein Datensatz, auf den dieser verweist, existiert nicht",
    "records of {model} refer to it": "Datensätze von {model} verweisen darauf",
    # -- what else is wrong with one field
    "is required here": "ist hier erforderlich",
    "at least one of {names} is required": "mindestens eines von {names} ist erforderlich",
    "must not have this value": "darf diesen Wert nicht haben",
    "must not be before {field}": "darf nicht vor {field} liegen",
    "must be the id of a {model}": "muss die Id eines Datensatzes von {model} sein",
    "must be a whole number": "muss eine ganze Zahl sein",
    "must be a whole number of at least {least}": "muss eine ganze Zahl ab {least} sein",
    "must have a time zone": "muss eine Zeitzone haben",
    "must be a text of at most {count} characters, without NUL and lone surrogates": (
        "muss ein Text mit höchstens {count} Zeichen sein, ohne NUL und einzelne Surrogate"
    ),
    "must be written without an exponent": "muss ohne Exponent geschrieben sein",
    "must have at most {count} digits behind the point": (
        "darf höchstens {count} Ziffern nach dem Komma haben"
    ),
    "must have at most {count} bytes, because it is indexed": (
        "darf höchstens {count} Bytes haben, weil es einen Index hat"
    ),
    "is null or would leave its bounds": "ist null oder würde seine Grenzen verlassen",
    '"{field}" cannot {change}': "„{field}“: {change} ist nicht möglich",
    "{field} of a new record cannot be {state}": "{field} eines neuen Datensatzes darf nicht {state} sein",
    '"{field}" cannot be changed like this': "„{field}“ darf nicht so geändert werden",
    # -- filters, sorts, pages
    "{part}: {name} takes {message}": "{part}: {name} erwartet {message}",
    "{part}: {name} takes at most {count} digits": "{part}: {name} erwartet höchstens {count} Ziffern",
    "{part}: {operator} takes no value": "{part}: {operator} erwartet keinen Wert",
    "{part}: {operator} takes exactly two values": "{part}: {operator} erwartet genau zwei Werte",
    "{part}: {operator} takes at least one value": "{part}: {operator} erwartet mindestens einen Wert",
    "{part}: {operator} takes a list": "{part}: {operator} erwartet eine Liste",
    "{part}: {operator} compares stored fields only": "{part}: {operator} vergleicht nur gespeicherte Felder",
    "{part}: {operator} does not work on {name}": "{part}: {operator} lässt sich auf {name} nicht anwenden",
    "{part}: {operator} does not work on translations": (
        "{part}: {operator} lässt sich auf Übersetzungen nicht anwenden"
    ),
    "{part}: there is no operator {name}": "{part}: es gibt keinen Operator {name}",
    "{part}: there is no operator {name}; write {usual}": (
        "{part}: es gibt keinen Operator {name}; gemeint ist {usual}"
    ),
    "{part}: {name} is one of {choices}": "{part}: {name} ist eines von {choices}",
    "{part}: {name} is not of the same kind": "{part}: {name} ist nicht von derselben Art",
    "{part}: {name} is not a field that can be used here": (
        "{part}: {name} ist kein Feld, das hier verwendet werden kann"
    ),
    "{part}: {name} is not a field that can be filtered": "{part}: nach {name} kann nicht gefiltert werden",
    "{part}: {name} is not a field": "{part}: {name} ist kein Feld",
    "{part}: {name} is not the code of a language": "{part}: {name} ist kein Sprachcode",
    "{part}: {name} has many texts here; name one: {choices}": (
        "{part}: {name} hat hier mehrere Texte; bitte einen nennen: {choices}"
    ),
    "{part}: a list of conditions": "{part}: eine Liste von Bedingungen",
    "{part}: a text {message}": "{part}: ein Text {message}",
    "{part}: the value does not fit {name}": "{part}: der Wert passt nicht zu {name}",
    "{part}: an entry has {name}, operator and value": "{part}: ein Eintrag hat {name}, operator und value",
    "{part}: a whole number from 1 to {most}": "{part}: eine ganze Zahl von 1 bis {most}",
    "{part}: a number from 1 to {most}": "{part}: eine Zahl von 1 bis {most}",
    "{part}: at most {most}": "{part}: höchstens {most}",
    "{part}: at most {most} values": "{part}: höchstens {most} Werte",
    "{part}: at most {most} characters": "{part}: höchstens {most} Zeichen",
    "{part}: at most {most} characters to look for": "{part}: höchstens {most} Zeichen zu suchen",
    "{part}: at most {most} wildcards in a pattern": "{part}: höchstens {most} Platzhalter in einem Muster",
    "{part}: a pattern cannot end with a backslash": (
        "{part}: ein Muster kann nicht mit einem Backslash enden"
    ),
    "{part}: must be a whole number": "{part}: muss eine ganze Zahl sein",
    "{part}: {name} lives in another database; it can be included, not filtered or sorted by": (
        "{part}: {name} liegt in einer anderen Datenbank; es kann eingeschlossen, aber nicht gefiltert oder "
        "sortiert werden"
    ),
    "{name} lives in another database; it can be included, not filtered or sorted by": (
        "{name} liegt in einer anderen Datenbank; es kann eingeschlossen, aber nicht gefiltert oder sortiert "
        "werden"
    ),
    "filter: a quote in the list is not closed": (
        "filter: ein Anführungszeichen in der Liste ist nicht geschlossen"
    ),
    "filter: a group is written filter[0]=field:operator:value": (
        "filter: eine Gruppe schreibt sich filter[0]=Feld:Operator:Wert"
    ),
    "filter: {name} is not told by the past": "filter: {name} ist aus der Vergangenheit nicht bekannt",
    "filter: {name} is for operators": "filter: {name} ist Betreibern vorbehalten",
    "filter: {name} has translations, which this service cannot compare": (
        "filter: {name} hat Übersetzungen, die dieser Dienst nicht vergleichen kann"
    ),
    "sort: {name} has translations, which this service cannot compare": (
        "sort: {name} hat Übersetzungen, die dieser Dienst nicht vergleichen kann"
    ),
    "sort: {name} is neither asc nor desc": "sort: {name} ist weder asc noch desc",
    "sort: {name} cannot be sorted": "sort: {name} kann nicht sortiert werden",
    "sort: {name} cannot be sorted by another record": (
        "sort: {name} kann nicht nach einem anderen Datensatz sortiert werden"
    ),
    "include: {name} goes {count} levels deep, and {most} is the most": (
        "include: {name} geht {count} Ebenen tief; erlaubt sind {most}"
    ),
    "include: more than {count} related records; ask for fewer": (
        "include: mehr als {count} verwandte Datensätze; bitte weniger abfragen"
    ),
    "cursor: cannot be combined with page": "cursor: geht nicht zusammen mit page",
    "cursor: cannot be combined with q": "cursor: geht nicht zusammen mit q",
    "cursor: the walk is ordered by {name}; it cannot be sorted by another field": (
        "cursor: die Reihenfolge ist die von {name}; nach einem anderen Feld kann nicht sortiert werden"
    ),
    "cursor: not available on these records": "cursor: für diese Datensätze nicht verfügbar",
    "cursor: the token was not made for this list; start again with cursor=": (
        "cursor: das Token gehört nicht zu dieser Liste; bitte mit cursor= neu beginnen"
    ),
    "cursor: {name} is paged by page and limit": "cursor: in {name} wird mit page und limit geblättert",
    "q: these records cannot be searched": "q: diese Datensätze können nicht durchsucht werden",
    "q: {name} cannot be searched": "q: {name} kann nicht durchsucht werden",
    "{name} cannot be searched": "{name} kann nicht durchsucht werden",
    "q: say what to search for": "q: bitte sagen, wonach gesucht wird",
    "models: {names} cannot be searched here": "models: {names} kann hier nicht durchsucht werden",
    "there is no model {name} that can be searched": "es gibt kein Modell {name}, das durchsucht werden kann",
    "a query parameter contains a NUL character": "ein Parameter der Abfrage enthält das Zeichen NUL",
    "a query string has at most {count} bytes": "eine Abfrage in der Adresse hat höchstens {count} Bytes",
    "{name}: the result is larger than a number can be": (
        "{name}: das Ergebnis ist größer, als eine Zahl sein kann"
    ),
    "the answer is larger than {size} bytes; ask for fewer rows or fields": (
        "die Antwort ist größer als {size} Bytes; bitte weniger Zeilen oder Felder abfragen"
    ),
    "max_depth: a whole number from 0 to {most}": "max_depth: eine ganze Zahl von 0 bis {most}",
    # -- what filters take
    "true or false": "true oder false",
    "an integer": "eine ganze Zahl",
    "a whole number": "eine ganze Zahl",
    "a number": "eine Zahl",
    "a decimal number": "eine Dezimalzahl",
    "a UUID": "eine UUID",
    "base64 text": "base64-Text",
    # -- aggregates
    "aggregate: a JSON object": "aggregate: ein JSON-Objekt",
    "aggregate: say once what to compute, in a JSON body or in the query string: {example}": (
        "aggregate: bitte einmal sagen, was berechnet wird, im JSON-Inhalt oder in der Adresse: {example}"
    ),
    "aggregate: {message}; write {example}": "aggregate: {message}; zum Beispiel {example}",
    "aggregate: there is no part {name}; use {choices}": (
        "aggregate: es gibt keinen Teil {name}, sondern {choices}"
    ),
    "{name}: an aggregate takes filter, q and aggregate; write {example}": (
        "{name}: ein Aggregat nimmt filter, q und aggregate; zum Beispiel {example}"
    ),
    "{part}: a list": "{part}: eine Liste",
    "{part}: a list{hint}": "{part}: eine Liste{hint}",
    "limit: a whole number from 1": "limit: eine ganze Zahl ab 1",
    "select: say what to compute, like {example}": (
        "select: bitte sagen, was berechnet wird, zum Beispiel {example}"
    ),
    "select: {name} needs a field; write {example}": (
        "select: {name} braucht ein Feld; zum Beispiel {example}"
    ),
    "select: as is a name of letters, digits and underscores": (
        "select: as ist ein Name aus Buchstaben, Ziffern und Unterstrichen"
    ),
    "select: there is no op {name}": "select: es gibt kein op {name}",
    "select: there is no op {name}; op is one of {choices}": (
        "select: es gibt kein op {name}, sondern {choices}"
    ),
    "group_by: {name} cannot be grouped by": "group_by: nach {name} kann nicht gruppiert werden",
    "{part}: {name} is named twice": "{part}: {name} ist zweimal genannt",
    "having: {name} is not computed here": "having: {name} wird hier nicht berechnet",
    "order_by: {name} is neither computed nor grouped by here": (
        "order_by: {name} wird hier weder berechnet noch gruppiert"
    ),
    "order_by: {name} is neither asc nor desc": "order_by: {name} ist weder asc noch desc",
    "order_by: an entry has field and direction": "order_by: ein Eintrag hat field und direction",
    # -- the past
    "as_of: the past can be read, not written": "as_of: die Vergangenheit lässt sich lesen, nicht schreiben",
    "as_of: a moment such as {example}": "as_of: ein Zeitpunkt wie {example}",
    "as_of: it is in the future": "as_of: das liegt in der Zukunft",
    "as_of: one moment at a time": "as_of: nur ein Zeitpunkt auf einmal",
    "{name}: not together with as_of": "{name}: nicht zusammen mit as_of",
    "filter and sort: with as_of they take the record's own fields": (
        "filter und sort: mit as_of gehen nur die eigenen Felder des Datensatzes"
    ),
    "filter and sort: with as_of they take no texts with translations": (
        "filter und sort: mit as_of gehen keine Texte mit Übersetzungen"
    ),
    "as_of: without snapshots only single records can be read as they were": (
        "as_of: ohne vollständige Stände lassen sich nur einzelne Datensätze lesen, wie sie waren"
    ),
    "as_of: only records and lists of versioned models can be read as they were": (
        "as_of: nur Datensätze und Listen versionierter Modelle lassen sich lesen, wie sie waren"
    ),
    "as_of: the record can be read as it was, its files cannot": (
        "as_of: der Datensatz lässt sich lesen, wie er war, seine Dateien nicht"
    ),
    (
        "{names}: not every record of then can be compared; ask for a later moment, or without that filter "
        "or sort"
    ): (
        "{names}: nicht jeder damalige Datensatz kann verglichen werden; bitte nach einem späteren Zeitpunkt "
        "oder ohne diesen Filter oder diese Sortierung fragen"
    ),
    "a history takes page, limit, filter, sort and select": (
        "eine Historie nimmt page, limit, filter, sort und select"
    ),
    "filter and sort: a history is asked for its own fields": (
        "filter und sort: eine Historie wird nach ihren eigenen Feldern gefragt"
    ),
    "one version takes select alone": "eine einzelne Version nimmt nur select",
    # -- exports
    "an export is written as {choices}": "ein Export wird als {choices} geschrieben",
    "an export has at most {most} rows; narrow the filters": (
        "ein Export hat höchstens {most} Zeilen; bitte die Filter enger fassen"
    ),
    "{count} rows match and an export has at most {most}; narrow the filters": (
        "{count} Zeilen passen, und ein Export hat höchstens {most}; bitte die Filter enger fassen"
    ),
    "too many rows match and an export has at most {most}; narrow the filters": (
        "zu viele Zeilen passen, und ein Export hat höchstens {most}; bitte die Filter enger fassen"
    ),
    "{message} and an export has at most {most}; narrow the filters": (
        "{message}, und ein Export hat höchstens {most}; bitte die Filter enger fassen"
    ),
    "a value of {name} is longer than a cell of a sheet; use format=csv": (
        "ein Wert von {name} ist länger als eine Zelle eines Tabellenblatts; bitte format=csv verwenden"
    ),
    "include: an export has no related records": "include: ein Export hat keine verwandten Datensätze",
    "cursor: an export has no pages": "cursor: ein Export hat keine Seiten",
    "select: {name} is not a field of the export": "select: {name} ist kein Feld des Exports",
    # -- files
    'send a form (multipart/form-data) with a part "file"': (
        "bitte ein Formular (multipart/form-data) mit einem Teil „file“ senden"
    ),
    'the form has more than one part "file"': "das Formular hat mehr als einen Teil „file“",
    "the form is larger than {size} bytes": "das Formular ist größer als {size} Bytes",
    "the texts of the form are larger than {size} bytes": (
        "die Texte des Formulars sind größer als {size} Bytes"
    ),
    "the form ends before its last boundary": "das Formular endet vor seiner letzten Grenze",
    "the form has more than {count} parts": "das Formular hat mehr als {count} Teile",
    "a part of the form has more than {size} bytes of headers": (
        "ein Teil des Formulars hat mehr als {size} Bytes an Kopfzeilen"
    ),
    "a part of the form has no name": "ein Teil des Formulars hat keinen Namen",
    "a part of the form is encoded; send its bytes as they are": (
        "ein Teil des Formulars ist kodiert; bitte die Bytes unverändert senden"
    ),
    "Content-Type names no boundary that a form may have": (
        "Content-Type nennt keine gültige Grenze (boundary)"
    ),
    "the {name} of a part of the form is no UTF-8": "{name} eines Teils des Formulars ist kein UTF-8",
    "the part {name} of the form is no UTF-8": "der Teil {name} des Formulars ist kein UTF-8",
    "the part {name} of the form: {message}": "der Teil {name} des Formulars: {message}",
    "is not a file field": "ist kein Dateifeld",
    "stands in the form more than once": "steht mehrmals im Formular",
    "names a file twice": "nennt eine Datei zweimal",
    "{name} takes at most {most} files": "{name} nimmt höchstens {most} Dateien",
    "there are {count} files, and {most} at most are taken": (
        "es sind {count} Dateien; angenommen werden höchstens {most}"
    ),
    "the key in the path is not encoded as it should be": "der Schlüssel im Pfad ist falsch kodiert",
    "the key in the path is no UTF-8": "der Schlüssel im Pfad ist kein UTF-8",
    "this URL takes {types}": "diese Adresse nimmt {types}",
    "a file was uploaded here already": "hier wurde schon eine Datei hochgeladen",
    "there is no room for this file: your files have as many bytes as they may": (
        "für diese Datei ist kein Platz: der erlaubte Speicher ist aufgebraucht"
    ),
    "the file is not of the type it says": "die Datei ist nicht von der angegebenen Art",
    "the file must be {types}": "die Datei muss von der Art {types} sein",
    "the file has more than {size} bytes": "die Datei hat mehr als {size} Bytes",
    # -- who may do what
    "a scope is missing": "ein Scope fehlt",
    "this operation is blocked": "diese Operation ist gesperrt",
    "you may not do this": "das ist nicht erlaubt",
    "this page asks for its token": "diese Seite verlangt ihr Token",
    "the account or the password is wrong": "Konto oder Passwort ist falsch",
    "the token has no id by which it could be revoked": (
        "das Token hat keine Id, mit der es widerrufen werden könnte"
    ),
    "the refresh token is not valid": "das Refresh-Token ist ungültig",
    "the refresh token was used before; sign in again": (
        "das Refresh-Token wurde schon verwendet; bitte neu anmelden"
    ),
    "an API key makes and rotates no keys; sign in to do so": (
        "ein API-Schlüssel legt keine Schlüssel an und erneuert keine; bitte dazu anmelden"
    ),
    "a key has at most the roles and scopes of its maker": (
        "ein Schlüssel hat höchstens die Rollen und Scopes dessen, der ihn anlegt"
    ),
    "a key of somebody else can be revoked, not rotated": (
        "ein fremder Schlüssel kann widerrufen, aber nicht erneuert werden"
    ),
    "the key lasts longer than one you could make now; make a new one": (
        "der Schlüssel gilt länger als einer, der jetzt angelegt werden könnte; bitte einen neuen anlegen"
    ),
    "the key was revoked or rotated meanwhile": "der Schlüssel wurde inzwischen widerrufen oder erneuert",
    "a request with this Idempotency-Key is still running": (
        "eine Anfrage mit diesem Idempotency-Key läuft noch"
    ),
    "this Idempotency-Key belongs to a request that asks for something else": (
        "dieser Idempotency-Key gehört zu einer anderen Anfrage"
    ),
    "a request with this Idempotency-Key has succeeded, and its answer cannot be given again": (
        "eine Anfrage mit diesem Idempotency-Key war erfolgreich; ihre Antwort kann nicht wiederholt werden"
    ),
    "this route needs an Idempotency-Key": "diese Route braucht einen Idempotency-Key",
    "Idempotency-Key takes 1 to 255 visible ASCII characters and is sent once": (
        "Idempotency-Key nimmt 1 bis 255 sichtbare ASCII-Zeichen und wird einmal gesendet"
    ),
    # -- runs, messages, jobs
    "run not found": "Lauf nicht gefunden",
    "job not found": "Job nicht gefunden",
    "there is a job of this id already": "es gibt schon einen Job mit dieser Id",
    "the job is running and cannot be cancelled": "der Job läuft und kann nicht abgebrochen werden",
    "the run waits for a signal or another run, which makes it due": (
        "der Lauf wartet auf ein Signal oder einen anderen Lauf, der ihn fällig macht"
    ),
    "the run is due already": "der Lauf ist schon fällig",
    "the run is {state} and does not wait": "der Lauf ist {state} und wartet nicht",
    "the run is {state} already": "der Lauf ist schon {state}",
    "the run is {state} and cannot be {change}": "der Lauf ist {state}; {change} ist nicht möglich",
    "the run is {state}; it waits for nothing": "der Lauf ist {state}; er wartet auf nichts",
    "the idempotency key belongs to a run of another type, {type}": (
        "der Idempotenzschlüssel gehört zu einem Lauf eines anderen Typs, {type}"
    ),
    "runs with this idempotency key are made and removed all the time; submit it again": (
        "Läufe mit diesem Idempotenzschlüssel werden laufend angelegt und entfernt; bitte erneut senden"
    ),
    "runs of this type are the application's to change": "Läufe dieses Typs ändert nur die Anwendung",
    "runs of this type are the application's to submit": "Läufe dieses Typs legt nur die Anwendung an",
    "the type {message}": "der Typ {message}",
    "{kind} is not a kind of message": "{kind} ist keine Art von Nachricht",
    "{key} is not a key": "{key} ist kein Schlüssel",
    "the message is {state}, not {wanted}": "die Nachricht ist {state}, nicht {wanted}",
    "reason: it has at most {count} characters": "reason: höchstens {count} Zeichen",
    "another process is changing partitions of this database; try again in a moment": (
        "ein anderer Prozess ändert gerade Partitionen dieser Datenbank; bitte gleich noch einmal versuchen"
    ),
    # -- schedules
    "schedule not found": "Zeitplan nicht gefunden",
    "a schedule has one target: run=, action= or url=": "ein Zeitplan hat ein Ziel: run=, action= oder url=",
    "{type} is submitted by the server alone": "{type} legt nur der Server an",
    "the action {name} is not declared schedulable": "die Aktion {name} ist nicht für Zeitpläne freigegeben",
    "what is stored cannot be read; give it another one": (
        "das Gespeicherte ist nicht lesbar; bitte neu setzen"
    ),
    "what is stored cannot be read: {reason}": "das Gespeicherte ist nicht lesbar: {reason}",
    "it is a text such as {examples}": "es ist ein Text wie {examples}",
    "there is no {name}; there are {choices}": "{name} gibt es nicht, sondern {choices}",
    "it has {count}; five are wanted: minute hour day-of-month month day-of-week": (
        "es hat {count}; gebraucht werden fünf: Minute Stunde Tag Monat Wochentag"
    ),
    "{cron} is never due": "{cron} ist nie fällig",
    "{zone} is not the name of a zone such as 'Europe/Berlin'": (
        "{zone} ist keine Zeitzone wie 'Europe/Berlin'"
    ),
    "there is no zone {zone}; a name is written like 'Europe/Berlin' or 'UTC'": (
        "die Zeitzone {zone} gibt es nicht; Namen sind etwa 'Europe/Berlin' oder 'UTC'"
    ),
    "{text} is no interval such as '@every 1h30m'": "{text} ist kein Abstand wie '@every 1h30m'",
    "an interval is a whole number of seconds, up to fifty years": (
        "ein Abstand ist eine ganze Zahl von Sekunden, bis zu fünfzig Jahren"
    ),
    "runs of {prefix}* are those of schedules; write action= or url=": (
        "Läufe {prefix}* sind die der Zeitpläne; bitte action= oder url= verwenden"
    ),
    "{name} is none of {choices}": "{name} ist keines von {choices}",
    "the handler of {type} is scoped: {reason}": "der Handler von {type} ist gebunden: {reason}",
    "it cannot be changed": "es kann nicht geändert werden",
    "it is not due within fifty years": "es ist in den nächsten fünfzig Jahren nicht fällig",
    "it is a text of 1 to {count} characters": "es ist ein Text mit 1 bis {count} Zeichen",
    "it is a whole number from 1 to {most}": "es ist eine ganze Zahl von 1 bis {most}",
    "it has characters that cannot be shown": "es enthält Zeichen, die sich nicht anzeigen lassen",
    "{host} is not a public address": "{host} ist keine öffentliche Adresse",
    "{message}; only code can allow_private": "{message}; nur Code kann allow_private setzen",
    "a URL has at most {count} characters": "eine URL hat höchstens {count} Zeichen",
    "{url} is not a URL": "{url} ist keine URL",
    "{url} is not a URL; write other characters as %..": (
        "{url} ist keine URL; andere Zeichen werden als %.. geschrieben"
    ),
    "{host} is not the name of a host": "{host} ist kein Name eines Rechners",
    "a URL that is posted to has no fragment, which nobody would receive": (
        "eine URL, an die gesendet wird, hat kein Fragment, das niemand erhielte"
    ),
    "a path below the base URL is needed: {problem}": "ein Pfad unterhalb der Basis-URL ist nötig: {problem}",
    "only code says what is sent to an address that is not public": (
        "was an eine nicht öffentliche Adresse geht, bestimmt nur Code"
    ),
    "there is no action {name}": "die Aktion {name} gibt es nicht",
    "there is no such type of run": "diesen Typ von Lauf gibt es nicht",
    "the action {name} needs one": "die Aktion {name} braucht einen Wert",
    "ids: name 1 to {most} schedules, with commas between them": (
        "ids: 1 bis {most} Zeitpläne, durch Kommas getrennt"
    ),
    # -- uniqueness and references
    "a record with these values already exists": "es gibt schon einen Datensatz mit diesen Werten",
    "a referenced record does not exist or is still in use": (
        "ein verknüpfter Datensatz existiert nicht oder wird noch verwendet"
    ),
    "the database is open for reading alone; nothing was written": (
        "die Datenbank ist nur zum Lesen geöffnet; es wurde nichts geschrieben"
    ),
    "a text in it is not valid Unicode: half of a character (a surrogate) stands alone": (
        "ein Text darin ist kein gültiges Unicode: ein halbes Zeichen (Surrogat) steht allein"
    ),
    "the attempt took longer than {seconds} s": "der Versuch dauerte länger als {seconds} s",
    # -- tokens, keys, other sites
    "the caller is not welcome any more": "der Zugang wurde entzogen",
    "too many attempts; try again later": "zu viele Versuche; bitte später erneut versuchen",
    "too many requests; try again later": "zu viele Anfragen; bitte später erneut versuchen",
    "the token is not valid": "das Token ist ungültig",
    "the token never expires, which is not accepted": "das Token läuft nie ab; das wird nicht angenommen",
    "the token is from another issuer": "das Token stammt von einem anderen Aussteller",
    "the token is for another audience": "das Token ist für einen anderen Empfänger",
    "the token has expired": "das Token ist abgelaufen",
    "the token is not valid yet": "das Token ist noch nicht gültig",
    "the token was issued in the future": "das Token wurde in der Zukunft ausgestellt",
    "the token was revoked": "das Token wurde widerrufen",
    "a token is sent as: Authorization: Bearer <token>": (
        "ein Token wird so gesendet: Authorization: Bearer <token>"
    ),
    "the claim {name} is missing": "der Claim {name} fehlt",
    "the claims are nested too deeply": "die Claims sind zu tief verschachtelt",
    "the claim {name} is no text": "der Claim {name} ist kein Text",
    "the claim {name} is neither a list of texts nor a text": (
        "der Claim {name} ist weder eine Liste von Texten noch ein Text"
    ),
    "the claim {name} is no number": "der Claim {name} ist keine Zahl",
    "the claim {name} is no moment": "der Claim {name} ist kein Zeitpunkt",
    "the request comes from another site": "die Anfrage kommt von einer anderen Seite",
    "the CSRF token is not in its header": "das CSRF-Token fehlt in seiner Kopfzeile",
    "the CSRF cookie is missing": "das CSRF-Cookie fehlt",
    "the CSRF token is not the one of this session": "das CSRF-Token gehört nicht zu dieser Sitzung",
    "there is no session that a CSRF token could belong to": (
        "es gibt keine Sitzung, zu der ein CSRF-Token gehören könnte"
    ),
    "the API key is missing or not valid": "der API-Schlüssel fehlt oder ist ungültig",
    "the user name or the password is wrong": "Benutzername oder Passwort ist falsch",
    "this origin may not call the server": "dieser Ursprung darf den Server nicht aufrufen",
    "other origins may not use this method": "andere Ursprünge dürfen diese Methode nicht verwenden",
    "other origins may not send one of these headers": (
        "andere Ursprünge dürfen eine dieser Kopfzeilen nicht senden"
    ),
    # -- further on schedules
    "a URL begins with http:// or https:// and names a host": (
        "eine Adresse beginnt mit http:// oder https:// und nennt einen Host"
    ),
    "a URL carries no user and no password; they would be stored and shown": (
        "eine Adresse enthält weder Benutzer noch Passwort; beide würden gespeichert und gezeigt"
    ),
    "it is a type such as email.receipt.v1, or a prefix that ends with a dot such as 'email.'": (
        "es ist ein Typ wie email.receipt.v1 oder ein Anfang, der mit einem Punkt endet, wie 'email.'"
    ),
    "are ids of persons, which are texts": "sind Ids von Personen, also Texte",
    "mean nothing where no model says with subject= whose data its records are": (
        "bedeuten nichts, wo kein Modell mit subject= sagt, wessen Daten seine Datensätze sind"
    ),
    "the feed of events cannot be continued from this cursor; begin anew": (
        "der Strom der Ereignisse lässt sich von diesem Cursor nicht fortsetzen; bitte neu beginnen"
    ),
    "{group} is a {kind}, which has no deliveries of the feed to make again": (
        "{group} ist vom Typ {kind} und hat keine Zustellungen, die sich wiederholen ließen"
    ),
    "the headers of the event are not valid": "die Kopfzeilen des Ereignisses sind ungültig",
    "the data of {type} are not what it declares": "die Daten von {type} sind nicht, was es angibt",
    "there is no group {name}": "die Gruppe {name} gibt es nicht",
    "the event of {model} cannot be made: {reason}": (
        "das Ereignis zu {model} kann nicht gebildet werden: {reason}"
    ),
    "the event {message}": "das Ereignis {message}",
    "the event cannot be made: {reason}": "das Ereignis kann nicht gebildet werden: {reason}",
    "it is internal or has dead letters sent to it, so clients do not submit it": (
        "er ist intern oder nimmt unzustellbare Nachrichten an, daher legen ihn Clients nicht an"
    ),
    "there is no handler of this type here; the types that begin with it are {name}": (
        "es gibt hier keinen Handler dieses Typs; die Typen, die so beginnen, sind {name}"
    ),
    "the code of this endpoint is not in this process": (
        "der Code dieses Endpunkts ist nicht in diesem Prozess"
    ),
    "the delivery waits already": "die Zustellung wartet bereits",
    "code declares this endpoint": "diesen Endpunkt gibt der Code vor",
    "there are {count} endpoints, and no more are allowed": (
        "es gibt {count} Endpunkte, und mehr sind nicht erlaubt"
    ),
    "{pattern} is not offered; there is {patterns}": "{pattern} wird nicht angeboten; es gibt {patterns}",
    "a URL begins with https://": "eine Adresse beginnt mit https://",
    "{name} has no time zone": "{name} hat keine Zeitzone",
    "the header {name} is written by the server": "die Kopfzeile {name} schreibt der Server",
    "{name} is not the name of a header": "{name} ist kein Name einer Kopfzeile",
    "the value of {name} is not of visible ASCII characters": (
        "der Wert von {name} besteht nicht aus sichtbaren ASCII-Zeichen"
    ),
    "there are at most {most}": "es gibt höchstens {most}",
    # -- several operations in one request
    "the batch has too many operations": "zu viele Operationen auf einmal",
    "a batch has at most {count} operations": "auf einmal sind höchstens {count} Operationen möglich",
    "operation {index} failed, and nothing was stored": (
        "Operation {index} ist gescheitert, und nichts wurde gespeichert"
    ),
    "an operation that this one refers to has failed, so it did not run": (
        "eine Operation, auf die sich diese bezieht, ist gescheitert, daher lief sie nicht"
    ),
    "the operation was refused": "die Operation wurde abgelehnt",
    "the operation answers with a stream, which has no place in a batch": (
        "die Operation antwortet mit einem Datenstrom, und der hat hier keinen Platz"
    ),
    "the operation answers with no JSON, which has no place in a batch": (
        "die Operation antwortet nicht mit JSON, und das hat hier keinen Platz"
    ),
    "the answers of the batch are larger than {most} bytes": (
        "die Antworten sind zusammen größer als {most} Bytes"
    ),
    "must be a list of one operation or more": "muss eine Liste mit mindestens einer Operation sein",
    "must be a path below the API's own, such as /orders": (
        "muss ein Pfad unterhalb des Pfads der API sein, etwa /orders"
    ),
    "has no place in a {method}": "hat in einem {method} keinen Platz",
    "is no name: letters, digits and _, at most 64": (
        "ist kein Name: Buchstaben, Ziffern und _, höchstens 64"
    ),
    "is the name of an earlier operation": "heißt schon eine frühere Operation",
    "has a brace that is no reference such as {order.id}": (
        "hat eine Klammer, die kein Verweis wie {order.id} ist"
    ),
    'has a "$ref" that does not stand alone with its text': (
        'hat ein "$ref", das nicht allein mit seinem Text steht'
    ),
    "has the reference {text}, which is none such as order.id": (
        "hat den Verweis {text}, der keiner wie order.id ist"
    ),
    "refers to {name}, which is no earlier operation": (
        "bezieht sich auf {name}, und das ist keine frühere Operation"
    ),
    "must be a text of printable ASCII": "muss ein Text aus druckbarem ASCII sein",
    "is a batch, and a batch has none in it": "ist selbst eine Folge von Operationen",
    "is an action, which batches of this server do not run": (
        "ist eine Aktion, und solche laufen hier nicht mit"
    ),
    "is no operation on records; exports, files, streams and searches are asked for by themselves": (
        "ist keine Operation auf Datensätzen; Exporte, Dateien, Datenströme und Suchen gibt es nur einzeln"
    ),
    "is about records that no transaction takes back; send atomic: false": (
        "betrifft Datensätze, die keine Transaktion zurücknimmt; bitte atomic: false senden"
    ),
    "is about another database than those before; send atomic: false": (
        "betrifft eine andere Datenbank als die davor; bitte atomic: false senden"
    ),
    "is not there in the answer of that operation": "steht nicht in der Antwort jener Operation",
    # -- records in the bodies of others
    'is a list of records: [{"…": …}, …]': 'ist eine Liste von Datensätzen: [{"…": …}, …]',
    'is a record: {"…": …}': 'ist ein Datensatz: {"…": …}',
    'is {"create": [{…}], "update": [{"id": …, …}], "delete": [id]}': (
        'hat die Form {"create": [{…}], "update": [{"id": …, …}], "delete": [id]}'
    ),
    'is {"link": [id], "create": [{…}]}': 'hat die Form {"link": [id], "create": [{…}]}',
    'is {"link": [id], "create": [{…}], "unlink": [id]}': (
        'hat die Form {"link": [id], "create": [{…}], "unlink": [id]}'
    ),
    'is {"create": {…}}, which makes another, or {"update": {…}}, which changes the present one': (
        'ist {"create": {…}} für einen anderen oder {"update": {…}} für den jetzigen Datensatz'
    ),
    "is a list": "ist eine Liste",
    "must be an id": "muss eine Id sein",
    "is given along with {key}; send one of the two": "steht neben {key}; bitte nur eines von beiden senden",
    "is named in {path} already": "ist schon in {path} genannt",
    "is the record around it, and is left out here": "ist der umgebende Datensatz und wird hier weggelassen",
    "is deeper than the {count} levels that a body may have": (
        "liegt tiefer als die {count} Ebenen, die ein Inhalt haben darf"
    ),
    "is beyond the {count} records that a body may have nested in it": (
        "geht über die {count} Datensätze hinaus, die in einem Inhalt stehen dürfen"
    ),
    "names no record that is there": "nennt keinen vorhandenen Datensatz",
    "changes the present record, and there is none": "ändert den jetzigen Datensatz, und es gibt keinen",
    # -- sagas
    "the saga failed, and what it had done was undone": (
        "der Ablauf ist gescheitert, und was getan war, wurde rückgängig gemacht"
    ),
    "the saga failed, and not all of it could be undone": (
        "der Ablauf ist gescheitert, und nicht alles ließ sich rückgängig machen"
    ),
}
