# Sourced by scripts/demo and scripts/test: leaves a Python 3.11 or newer in $python, or stops.

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    for python in ${PYTHON:-} python3 python3.11 python3.12 python3.13 python3.14 python; do
        if command -v "$python" >/dev/null 2>&1 && is_new_enough "$python"; then
            return 0
        fi
    done
    echo "$(basename "$0"): Python 3.11 or newer is needed; install it, or name it with PYTHON=/path/to/python3" >&2
    exit 1
}

find_python
