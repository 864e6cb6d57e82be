#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts plausible mistakes, the mutants, into a copy of the tree, one at a time, and says which of them the tests notice.
# A mutant is a file mutants/*.diff: a small patch (-p1) behind lines that begin with #, see scripts/mutants/README.md.
set -u
here=$(cd "$(dirname "$0")" && pwd)

usage() {
    cat <<'END'
Usage: scripts/mutants.sh [OPTION...] [NAME...]
Puts each mutant into a copy of the tree, builds it, runs the tests that should notice, and says whether one did.
NAME is a pattern of the shell for the names of mutants; without one, all are tried. The exit status is 0 if every one
was caught.

  --list         say which there are, and try none
  --check        only see that they are well formed and still apply
  --limit S      seconds for the tests of one mutant (300)
  --jobs N       of the build and of ctest (2)
  --source DIR   the tree that is copied, with its mutants in scripts/mutants (the one of this script)
  --work DIR     for the copy and its builds, kept for the next time (DIR of --source, build-mutants)
  --help         this text

Arguments for cmake are taken from CMAKE_ARGS.
END
}

die() {
    echo "mutants: $*" >&2
    exit 2
}

mode=run limit=300 jobs=2 source=$(dirname "$here") work='' names=()
while [ $# -gt 0 ]; do
    case $1 in
    --help) usage && exit ;;
    --list | --check) mode=${1#--} ;;
    --limit | --jobs | --source | --work)
        [ $# -gt 1 ] || die "$1 needs a value"
        case $1 in
        --limit | --jobs)
            [[ $2 =~ ^[1-9][0-9]{0,5}$ ]] || die "$1 is '$2', expected a positive number"
            declare "${1#--}=$2"
            ;;
        *) declare "${1#--}=$2" ;;
        esac
        shift
        ;;
    -*) die "no option '$1'; --help lists them" ;;
    *) names+=("$1") ;;
    esac
    shift
done
source=$(cd "$source" && pwd) || exit 2
mutants=$source/scripts/mutants
: "${work:=$source/build-mutants}"
command -v patch >/dev/null || die "patch is missing: install it with 'apt-get install patch'"

# Lines `# KEY: ...` of all mutants, by name and key. One program reads them all.
declare -A headers=()
read_headers() {
    local key value
    while IFS=$'\t' read -r key value; do
        headers[$key]=$value
    done < <(awk '
        FNR == 1 { name = FILENAME; sub(/.*\//, "", name); sub(/\.diff$/, "", name) }
        !/^(#|$)/ { nextfile }
        match($0, /^# [a-z]+:/) {
            value = substr($0, RLENGTH + 1)
            sub(/^ +/, "", value)
            print name " " substr($0, 3, RLENGTH - 3) "\t" value
        }' "$@")
}

# header FILE KEY: leaves what the mutant's line `# KEY: ...` says in $said.
header() {
    local name=${1##*/}
    said=${headers[${name%.diff} $2]:-}
}

# The files that a mutant changes.
touched() {
    sed -n 's|^+++ b/\([^[:space:]]*\).*|\1|p' "$1"
}

# fits FILE: says what is wrong with a mutant, if something is. No fuzz: a mistake is to be made where it was meant.
fits() {
    local build told
    header "$1" build && build=$said
    [[ ${build:-plain} =~ ^(plain|asan|tsan)$ ]] || echo "its build is '$build', expected plain, asan or tsan"
    header "$1" test && [ -n "$said" ] || echo "it names no test"
    header "$1" why && [ -n "$said" ] || echo "it does not say why it is a mistake"
    [ -n "$(touched "$1")" ] || echo "it has no line '+++ b/FILE'"
    told=$(patch -p1 -d "$2" --dry-run --force --fuzz=0 --reject-file=- <"$1" 2>&1) ||
        echo "it does not apply: $(grep -i -m1 'fail\|can.t\|malformed\|garbage' <<<"$told")"
}

# Whether a mutant is among those that were asked for.
wanted() {
    local name pattern
    name=${1##*/} name=${name%.diff}
    [ ${#names[@]} -gt 0 ] || return 0
    for pattern in "${names[@]}"; do
        # shellcheck disable=SC2053
        [[ $name == $pattern ]] && return 0
    done
    return 1
}

# refresh: brings the copy up to the tree. Files that have not changed keep their times, so that little is built again.
refresh() {
    local file
    mkdir -p "$tree" || exit 2
    files() { (cd "$1" && find . -path './.git' -prune -o -path './build' -prune -o -path './build-*' -prune -o -type f -print | sort); }
    while IFS= read -r file; do
        cmp -s "$source/$file" "$tree/$file" && continue
        mkdir -p "$(dirname "$tree/$file")" && cp -p "$source/$file" "$tree/$file" && touch "$tree/$file" || exit 2
    done < <(files "$source")
    comm -13 <(files "$source") <(files "$tree") | (cd "$tree" && xargs -r -d '\n' rm -f)
}

# configure BUILD: once.
configure() {
    local kind=() ccache=()
    [ -f "$work/$1/build.ninja" ] && return
    command -v ccache >/dev/null && ccache=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)
    case $1 in
    asan) kind=(-DCMAKE_BUILD_TYPE=Debug -DLAP_SANITIZE=address -DLAP_CUDA=OFF) ;;
    tsan) kind=(-DCMAKE_BUILD_TYPE=Debug -DLAP_SANITIZE=thread -DLAP_CUDA=OFF) ;;
    esac
    # shellcheck disable=SC2086
    cmake -S "$tree" -B "$work/$1" -G Ninja "${kind[@]}" "${ccache[@]}" ${CMAKE_ARGS:-} >"$work/configure.log" 2>&1 ||
        { tail -n 20 "$work/configure.log" && die "cmake failed"; }
}

# programs BUILD TESTS: the files of the build that stand in the tests' commands and environment. Versions of CMake spell the name of
# a test differently in the files they generate: bare, quoted or in brackets.
programs() {
    ctest --test-dir "$work/$1" -N -R "$2" | sed -n 's/^ *Test *#[0-9]*: \(.*\)/([=[\1]=] \n(\1 \n("\1" /p' |
        grep -h -F -f - $(find "$work/$1" -name CTestTestfile.cmake) | grep -o "$work/$1/[^\";: ]*" | sed "s|^$work/$1/||" | sort -u
}

# build BUILD TESTS: no more than the tests need, or everything where that is not known.
build() {
    local needed targets=() unnamed
    # What tests need besides: libraries, and the suites that overlap/faults.sh runs at its end.
    unnamed='lap_cli fake_cuda fake_cublaslt fake_nccl fake_cublasmp fake_profiler test_overlap_conformance test_overlap_traced'
    needed=$(programs "$1" "$2")
    [ -n "$needed" ] &&
        mapfile -t targets < <(ninja -C "$work/$1" -t targets all 2>/dev/null | sed 's/: [^:]*$//' | grep -vx 'test' |
            grep -Fx -f <(printf '%s\n' $needed $unnamed))
    ninja -C "$work/$1" -j "$jobs" "${targets[@]}" >"$work/build.log" 2>&1
}

# run_tests BUILD TESTS: until one fails.
run_tests() {
    timeout "$limit" ctest --test-dir "$work/$1" -j "$jobs" -R "$2" --stop-on-failure --no-tests=error --output-on-failure \
        >"$work/test.log" 2>&1
}

# The first test that failed, as ctest tells at its end.
culprit() {
    sed -n 's/^[[:space:]]*[0-9]* - \([^ ]*\) (\(.*\))$/\1 \2/p' "$work/test.log" | grep -v 'Not Run\|Skipped\|Disabled' |
        sed 's/ Failed$//; s/ Timeout$/ (its time limit)/' | head -n 1
}

# keep FILE, restore: what a mutant changes, before and after. The tree itself may have changed meanwhile.
keep() {
    local file
    rm -rf "$work/kept"
    while IFS= read -r file; do
        mkdir -p "$work/kept/$(dirname "$file")" && cp "$tree/$file" "$work/kept/$file"
    done < <(touched "$1")
}
restore() {
    cp -r "$work/kept/." "$tree/"
}

# try FILE: sets `verdict` and `detail`.
try() {
    local build tests file
    header "$1" test && tests=$said
    header "$1" build && build=${said:-plain}
    detail=$(fits "$1" "$tree" | head -n 1)
    if [ -n "$detail" ]; then
        verdict='does not apply'
        return
    fi
    keep "$1"
    patch -p1 -d "$tree" --silent --force --fuzz=0 --no-backup-if-mismatch <"$1" >/dev/null 2>&1
    # A clock with coarse ticks must not hide the change from ninja.
    while IFS= read -r file; do touch "$tree/$file"; done < <(touched "$1")
    configure "$build"
    if ! build "$build" "$tests"; then
        verdict='does not build' detail=$(grep -m1 'error\|FAILED' "$work/build.log")
    else
        run_tests "$build" "$tests"
        case $? in
        0) verdict=alive detail="$tests passed" ;;
        124) verdict='no verdict' detail="$tests took longer than $limit s" ;;
        *)
            verdict=caught detail=$(culprit)
            [ -n "$detail" ] || verdict='no verdict' detail=$(grep -m1 'No tests\|rror' "$work/test.log")
            ;;
        esac
    fi
    cp "$work/test.log" "$work/$(basename "$1" .diff).log" 2>/dev/null
    restore
}

all=()
[ -z "$(compgen -G "$mutants/*.diff")" ] || read_headers "$mutants"/*.diff
for file in "$mutants"/*.diff; do
    [ -e "$file" ] && wanted "$file" || continue
    all+=("$file")
done
[ ${#all[@]} -gt 0 ] || die "no mutant is of that name"

if [ "$mode" = list ]; then
    for file in "${all[@]}"; do
        name=${file##*/} name=${name%.diff}
        header "$file" why && printf '%-28s %s\n' "$name" "$said"
    done
    exit
fi
if [ "$mode" = check ]; then
    bad=0
    for file in "${all[@]}"; do
        while IFS= read -r told; do
            echo "mutants: $(basename "$file"): $told" >&2
            bad=1
        done < <(fits "$file" "$source")
    done
    [ $bad = 0 ] && echo "${#all[@]} mutants apply"
    exit $bad
fi

mkdir -p "$work" || exit 2
work=$(cd "$work" && pwd)
tree=$work/tree
refresh
# Whoever goes on editing meanwhile does not disturb.
rm -rf "$work/mutants" && mkdir "$work/mutants" && cp "${all[@]}" "$work/mutants" || exit 2
all=("$work"/mutants/*.diff)
declare -A counts=() caught_by=()
rows=()
for file in "${all[@]}"; do
    name=$(basename "$file" .diff) start=$SECONDS verdict='' detail=''
    try "$file"
    header "$file" build
    [ "$verdict" = caught ] && caught_by["$said ${detail%% *}"]+=" $name"
    counts[$verdict]=$((${counts[$verdict]:-0} + 1))
    row=$(printf '%-14s %-28s %4d s  %s' "$verdict" "$name" $((SECONDS - start)) "$detail")
    rows+=("$row")
    echo "$row"
done

# A test that fails without any mistake notices nothing: those that caught a mutant must pass on the tree as it is.
for key in "${!caught_by[@]}"; do
    build=${key%% *} name=${key#* }
    pattern="^${name//./\\.}\$"
    build "${build:-plain}" "$pattern" && run_tests "${build:-plain}" "$pattern" && continue
    echo "not trusted: $name fails without a mutant, too:${caught_by[$key]}"
    counts['not trusted']=$((${counts['not trusted']:-0} + 1))
done

echo
echo "${#all[@]} mutants, in $SECONDS s:"
status=0
for verdict in caught alive 'not trusted' 'no verdict' 'does not apply' 'does not build'; do
    [ -n "${counts[$verdict]:-}" ] || continue
    printf '%6d  %s\n' "${counts[$verdict]}" "$verdict"
    [ "$verdict" = caught ] && continue
    status=1
    printf '%s\n' "${rows[@]}" | grep "^$verdict  *[a-z]" | sed 's/^/          /'
done
exit $status
