"""Workbooks that no spreadsheet writes: made by hand, part by part."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_TYPES = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
HEAD = '<row r="1"><c r="A1" t="inlineStr"><is><t>code</t></is></c></row>'


def row(number: int, text: str) -> str:
    """A row with one text."""
    return f'<row r="{number}"><c r="A{number}" t="inlineStr"><is><t>{text}</t></is></c></row>'


def override(part: str, kind: str) -> str:
    """What a part is said to be."""
    return f'<Override PartName="/{part}" ContentType="{_TYPES}.{kind}+xml"/>'


def make_workbook(
    rows: str, *, types: str = "", parts: Mapping[str, str] | None = None, size: str = ""
) -> bytes:
    """An xlsx file with these rows below its head."""
    sheet = f'<worksheet xmlns="{_MAIN}">{size}<sheetData>{HEAD}{rows}</sheetData></worksheet>'
    files = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f"{override('xl/workbook.xml', 'sheet.main')}{override('xl/worksheets/sheet1.xml', 'worksheet')}"
        f"{types}</Types>",
        "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="rId1"'
        f' Type="{_RELATIONS}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_RELATIONS}"><sheets>'
        '<sheet name="S" sheetId="1" r:id="rId1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship'
        f' Id="rId1" Type="{_RELATIONS}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
        "xl/worksheets/sheet1.xml": sheet,
        **(parts or {}),
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


def encrypt_flags(content: bytes) -> bytes:
    """The file as if its parts were encrypted."""
    raw = bytearray(content)
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = raw.find(signature)
        while place >= 0:
            raw[place + offset] |= 1
            place = raw.find(signature, place + 4)
    return bytes(raw)
