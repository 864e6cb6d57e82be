#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lint.sh BUILD: the format, clang-tidy and cppcheck over all C files, pyflakes over those of Python; BUILD holds compile_commands.json.
# lint.sh BUILD --quick: without the path analysis of clang-tidy (clang-analyzer-*), which takes nine tenths of the time. It
# is what continuous integration runs.
# lint.sh --fix-format: rewrites the files as .clang-format says, and nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(find include src cli test fuzz faults examples -name '*.[ch]' | sort)

if [ "$1" = --fix-format ]; then
    exec clang-format -i "${files[@]}"
fi
build=$1
checks=
[ "${2:-}" = --quick ] && checks='-clang-analyzer-*'
failed=0

echo "lint: clang-format, ${#files[@]} files"
printf '%s\0' "${files[@]}" | xargs -0 -n 64 -P "$(nproc)" clang-format --dry-run -Werror || failed=1

# Files that nothing here compiles, such as what needs MPI where there is none, have no command to look at them with.
mapfile -t sources < <(printf '%s\n' "${files[@]}" | grep '\.c$' | grep -v '^test/install/')
mapfile -t sources < <(for file in "${sources[@]}"; do grep -qF "/$file\"" "$build/compile_commands.json" && echo "$file"; done)
echo "lint: clang-tidy${checks:+ without path analysis}, ${#sources[@]} files"
# What clang-tidy finds goes to standard output; standard error only counts it. It does not know all options of gcc.
printf '%s\0' "${sources[@]}" |
    xargs -0 -n 4 -P "$(nproc)" clang-tidy --quiet -p "$build" --checks="$checks" \
        --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-unused-command-line-argument 2>/dev/null || failed=1

# What cppcheck is told not to say:
#   missingIncludeSystem  it does not need the headers of the system
#   invalidPointerCast    the elements of a tensor are found by bytes
#   varFuncNullUB         NULL is a pointer in the C libraries of Linux
echo "lint: cppcheck"
cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr \
    --suppress=missingIncludeSystem --suppress=invalidPointerCast --suppress=varFuncNullUB \
    -D_GNU_SOURCE -Iinclude -Isrc -Itest -I"$build/generated" \
    --error-exitcode=1 -j "$(nproc)" "${sources[@]}" || failed=1
echo "lint: pyflakes"
pyflakes3 python test/python examples/python || failed=1
[ $failed = 0 ] && echo "lint: clean"
exit $failed
