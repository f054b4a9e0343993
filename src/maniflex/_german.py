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
    "filter: {name} is not a field that can be filtered": "filter: nach {name} kann nicht gefiltert werden",
    "sort: {name} is not a field that can be sorted by": "sort: nach {name} kann nicht sortiert werden",
    "select: {name} is not a field": "select: {name} ist kein Feld",
    "include: {name} is not a relation that can be included": (
        "include: {name} kann nicht eingeschlossen werden"
    ),
    "filter: write it as field:operator:value": "filter: die Schreibweise ist Feld:Operator:Wert",
    "filter: there is no operator {name}": "filter: es gibt keinen Operator {name}",
    "filter: {operator} does not work on {name}": "filter: {operator} lässt sich auf {name} nicht anwenden",
    "filter: {field} takes {kind}": "filter: {field} erwartet {kind}",
    "page: a whole number from 1 to {most}": "page: eine ganze Zahl von 1 bis {most}",
    "limit: a whole number; a page has at most {most} records": (
        "limit: eine ganze Zahl; eine Seite hat höchstens {most} Datensätze"
    ),
    "there is no parameter {name}": "es gibt keinen Parameter {name}",
    "locale: one code of a language such as de or pt-BR": "locale: ein Sprachcode wie de oder pt-BR",
}
