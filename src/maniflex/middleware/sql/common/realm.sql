-- name: find
SELECT realm FROM store_realm WHERE id = 'realm';

-- name: add
INSERT INTO store_realm (id, realm) VALUES ('realm', :realm) ON CONFLICT (id) DO NOTHING RETURNING id;
