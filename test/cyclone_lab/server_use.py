"""The parts of a server that pg_cyclone uses: functions, variables, macros, constants, types and parts of structs, with what each is there.

Names come from our sources, and for functions and variables from the compiled objects; what they are comes from the server's headers as
the preprocessor leaves them. A struct counts as used if a type that we use leads to it over members whose names occur in our sources:
so there may be some too many, and a macro's or an inline function's own use of others isn't followed. The meaning of what we use isn't
compared: a function that does something else under the same declaration looks the same.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from cyclone_lab.postgres import REPO, run_program

SRC = REPO / "src"
SERVER = "server:"  # what stands for the folder of its headers
DECLARATION = re.compile(r"(\w+) ?\(")  # the name of a function in its declaration
COMMENT = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


@dataclass
class Struct:
    """A struct or union: the C name of its type, and the type of each member that has an offset, by its path from the struct."""

    type_name: str
    members: dict[str, str] = field(default_factory=dict)


@dataclass
class Headers:
    """The declarations in the headers of a server, by name: the kind of each, and its text."""

    declared: dict[str, tuple[str, str]] = field(default_factory=dict)
    structs: dict[str, Struct] = field(default_factory=dict)  # under the tag, and under the name of a typedef


def list_use(prefix: Path, objects: Path, major: int) -> dict[str, str]:
    """Return what the sources use of the server in `prefix`, as "kind name", and what that is there.

    `objects` is the folder in which they were compiled for it. Raises RuntimeError.
    """
    sources = [path for path in sorted(SRC.rglob("*.[ch]")) if _is_for(path, major)]
    text = "\n".join(COMMENT.sub('""', path.read_text()) for path in sources if path.suffix in (".c", ".h"))
    includes = dict.fromkeys(name for path in sources for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE))
    include_dir = Path(run_program(prefix, "pg_config", "--includedir-server").stdout.strip())
    # as our sources do, for want of these libraries' headers
    program = '#include "postgres.h"\n#undef USE_OPENSSL\n#undef USE_SSL\n#undef ENABLE_GSS\n'
    program += "".join(f'#include "{name}"\n' for name in includes if (include_dir / name).exists())
    headers = _parse(_preprocess(program, include_dir))

    words = set(re.findall(r"\b[A-Za-z_]\w*", text))
    linked = _undefined(objects)
    used = {}
    for name, (kind, what) in headers.declared.items():
        if name in (linked if kind in ("function", "variable") else words):
            used[f"{kind} {name}"] = what
    fields = set(re.findall(r"(?:->|\.)\s*([A-Za-z_]\w*)", text))
    return used | _layouts(headers, words, fields, program, include_dir, used)


def _is_for(path: Path, major: int) -> bool:
    """Tell whether a source is compiled for this major version."""
    match = re.fullmatch(r"(pg|before|since)(\d+)\.h", path.name)
    if not match:
        return True
    number = int(match[2])
    return {"pg": major == number, "before": major < number, "since": major >= number}[match[1]]


def _preprocess(program: str, include_dir: Path) -> str:
    """Return a C program as the preprocessor leaves it, with the macros' definitions."""
    command = ["gcc", "-E", "-dD", f"-I{include_dir}", "-D_GNU_SOURCE", "-x", "c", "-"]
    result = subprocess.run(command, input=program, text=True, capture_output=True)
    if result.returncode != 0:
        raise RuntimeError(result.stderr)
    return result.stdout.replace(f"{include_dir}/", SERVER)  # which __FILE__ has brought into the text


def _undefined(objects: Path) -> set[str]:
    """Return the symbols that the objects below a folder need and don't have."""
    listing = subprocess.run(["nm", *objects.rglob("*.o")], text=True, capture_output=True, check=True).stdout
    needed = set(re.findall(r"^ +[Uw] (\w+)$", listing, re.MULTILINE))
    return needed - set(re.findall(r"^[0-9a-f]+ [A-Z] (\w+)$", listing, re.MULTILINE))


def _parse(preprocessed: str) -> Headers:
    """Take apart what the preprocessor has left of the server's headers."""
    headers = Headers()
    code: list[str] = []
    is_server = False  # is this line of the server's headers?
    for line in preprocessed.splitlines():
        if marker := re.match(r'# \d+ "([^"]*)"', line):
            is_server = marker[1].startswith(SERVER)
        elif not is_server:
            continue
        elif macro := re.match(r"#define (\w+)(.*)", line):
            headers.declared[macro[1]] = ("macro", " ".join(macro[2].split()))
        elif not line.startswith("#"):
            code.append(line)
    for statement in _statements("\n".join(code)):
        _take(headers, statement)
    return headers


def _statements(code: str) -> list[str]:
    """Return the declarations and definitions of a program, without attributes, blanks in one shape."""
    statements, start, depth = [], 0, 0
    for match in re.finditer(r"[{};]|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'", code):
        if match[0] == "{":
            if depth == 0:
                is_function = code[start : match.start()].rstrip().endswith(")") and "typedef" not in code[start : match.start()]
            depth += 1
        elif match[0] == "}":
            depth -= 1
        if depth == 0 and (match[0] == ";" or (match[0] == "}" and is_function)):
            statements.append(" ".join(_without_attributes(code[start : match.end()]).split()))
            start = match.end()
    return statements


def _without_attributes(text: str) -> str:
    """Take out __attribute__((...)) and __asm__(...), whatever is in their parentheses, and words without meaning here."""
    while match := re.search(r"\b(?:__attribute__|__asm__|_Alignas|__extension__)\b *", text):
        end = match.end()
        if end < len(text) and text[end] == "(":
            depth = 0
            for end in range(match.end(), len(text)):
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                if depth == 0:
                    end += 1
                    break
        text = text[: match.start()] + text[end:]
    return text


def _take(headers: Headers, statement: str) -> None:
    """Note what a declaration declares."""
    match = re.match(r"(?:typedef )?(struct|union|enum)(?: (\w+))? ?\{(.*)\} ?(\w*)[^{}]*;$", statement)
    if match:
        kind, tag, body, name = match.groups()
        if kind == "enum":
            for number, constant in enumerate(part.strip() for part in body.split(",") if part.strip()):
                headers.declared[re.match(r"\w+", constant)[0]] = ("constant", f"{constant}, number {number} of {tag or name}")
        else:
            is_type = statement.startswith("typedef")
            struct = Struct(f"{kind} {tag}" if tag else name)
            _take_members(struct, body, "")
            headers.structs.update({key: struct for key in (tag, name if is_type else "") if key})
    elif statement.startswith("typedef"):
        alias = re.match(r"typedef (?:struct|union) (\w+) (\**)(\w+);", statement)
        pointer = re.search(r"\( ?\* ?(\w+) ?\) ?\(", statement)
        name = alias[3] if alias else pointer[1] if pointer else re.search(r"(\w+) ?(?:\[.*\])?;$", statement)[1]
        headers.declared[name] = ("type", statement)
    elif "{" in statement and (name := DECLARATION.search(statement.partition("{")[0])):
        headers.declared[name[1]] = ("inline function", statement)
    elif re.match(r"_Static_assert|(?:struct|union|enum) \w+;|;", statement):
        pass
    elif "(" in statement and (name := DECLARATION.search(statement)):
        if headers.declared.get(name[1], ("",))[0] != "inline function":
            headers.declared[name[1]] = ("function", statement.removeprefix("extern "))
    elif name := re.search(r"(\w+) ?(?:\[[^]]*\] ?)*(?:=.*)?;$", statement):
        headers.declared[name[1]] = ("variable", statement.removeprefix("extern "))


def _take_members(struct: Struct, body: str, path: str) -> None:
    """Note the members of a struct's body, and those within them, under their paths; bit fields have no offset."""
    start = depth = 0
    for match in re.finditer(r"[{};]", body):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if match[0] != ";" or depth > 0:
            continue
        member = body[start : match.start()].strip()
        start = match.end()
        if inner := re.match(r"(?:struct|union)(?: \w+)? ?\{(.*)\} ?(\w*)", member):
            if inner[2]:
                struct.members[path + inner[2]] = member
            if "[" not in member[inner.end() :]:
                _take_members(struct, inner[1], f"{path}{inner[2]}." if inner[2] else path)
        elif ":" not in (plain := re.sub(r"\[[^]]*\]|\([^()]*\)$", "", member)):  # without bounds, and a function's parameters
            for declared in plain.split(","):
                if name := re.search(r"(\w+)\W*$", declared):
                    struct.members[path + name[1]] = member


def _layouts(
    headers: Headers, words: set[str], fields: set[str], program: str, include_dir: Path, used: dict[str, str]
) -> dict[str, str]:
    """Return size, and offsets of used members, of each struct that the sources can reach."""
    reached: dict[str, Struct] = {}
    todo = words | set(re.findall(r"\w+", " ".join(what for name, what in used.items() if not name.startswith("macro"))))
    while todo:
        found = {headers.structs[word].type_name: headers.structs[word] for word in todo if word in headers.structs}
        found |= {
            struct.type_name: struct
            for word in todo
            if word in headers.declared and headers.declared[word][0] == "type"
            for struct in [headers.structs.get(other) for other in re.findall(r"\w+", headers.declared[word][1])]
            if struct
        }
        new = {name: struct for name, struct in found.items() if name not in reached}
        reached |= new
        members = [what for struct in new.values() for path, what in struct.members.items() if path.split(".")[-1] in fields]
        todo = set(re.findall(r"\w+", " ".join(members)))
    lines, names = [], []
    for struct in reached.values():
        paths = [path for path in struct.members if path.split(".")[-1] in fields]
        title = struct.type_name if " " in struct.type_name else f"struct {struct.type_name}"
        values = [(f"{title}: its size", f"sizeof({struct.type_name})")]
        values += [(f"{title}: {path}", f"__builtin_offsetof({struct.type_name}, {path})") for path in paths]
        for name, value in values if paths else []:
            lines.append(f'__asm__ volatile("@@ {len(names)} %c0" :: "i"({value}));\n')
            names.append(name)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "layouts.c")
        source.write_text(f"{program}void layouts(void);\nvoid layouts(void)\n{{\n{''.join(lines)}}}\n")
        command = ["gcc", "-S", "-w", "-O0", f"-I{include_dir}", "-D_GNU_SOURCE", "-o", "-", source]
        result = subprocess.run(command, text=True, capture_output=True)
    if result.returncode != 0:
        raise RuntimeError(result.stderr)
    return {names[int(number)]: value for number, value in re.findall(r"@@ (\d+) (\d+)", result.stdout)}
