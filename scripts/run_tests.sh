#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run_tests.sh [--budget SECONDS] BUILD [ARGUMENT of ctest...]: runs the tests of a build, and says last what they took, and how many
# were skipped, and why. Ends with the status of ctest; in continuous integration (CI is set) a test that was skipped is one that failed.
# With --budget so is a run that took more seconds of all processors: a test that is new has its price.
set -u
budget=0
if [ "$1" = --budget ]; then
    budget=$2
    shift 2
fi
build=$1
shift
report=Testing/report.xml # in the build
rm -f "$build/$report"
ctest --test-dir "$build" --output-on-failure --no-tests=error --output-junit "$report" "$@"
status=$?
[ -f "$build/$report" ] || exit $status

# Where the time went: that of processors in all, and by the clock for the tests of each folder, which run side by side.
times >"$build/Testing/times" # the second line is that of children, as 1m2.5s 0m3.25s
awk -v budget="$budget" '
    function seconds(text) {
        split(text, parts, "m")
        return 60 * parts[1] + parts[2]
    }
    FNR == 2 && NR == 2 { used = seconds($1) + seconds($2) }
    /<testcase / && match($0, /name="[^"]*"/) {
        folder = substr($0, RSTART + 6, RLENGTH - 7)
        sub(/\/.*/, "", folder)
        match($0, /time="[^"]*"/)
        taken[folder] += substr($0, RSTART + 6, RLENGTH - 7)
        count[folder]++
    }
    END {
        printf "\nThe tests took %.0f s of processors; by folders, with their number, by the clock:\n", used
        for (folder in taken)
            printf "%8.0f s  %4d  %s\n", taken[folder], count[folder], folder | "sort -rn"
        close("sort -rn")
        if (budget > 0 && used > budget) {
            printf "run_tests: %.0f s of processors are more than the %s of --budget\n", used, budget
            exit 1
        }
    }
' "$build/Testing/times" "$build/$report" || status=$((status ? status : 1))

# A reason is what stands behind the last # SKIP of a test's output or, without one, its last line.
awk '
    function plain(text) {
        gsub(/&lt;/, "<", text)
        gsub(/&gt;/, ">", text)
        gsub(/&quot;/, "\"", text)
        gsub(/&apos;/, "\047", text)
        gsub(/&amp;/, "\\&", text)
        return text
    }
    /<testcase / { skipped = said = 0; reason = "it gives no reason" }
    /<skipped message="SKIP_RETURN_CODE/ { skipped = 1 }
    /<system-out>/ { inside = 1; sub(/.*<system-out>/, "") }
    inside {
        line = $0
        sub(/<\/system-out>.*/, "", line)
        gsub(/^[ \t]+|[ \t]+$/, "", line)
        if (match(line, /# SKIP +/)) {
            reason = substr(line, RSTART + RLENGTH)
            said = 1
        } else if (line != "" && !said) {
            reason = line
        }
    }
    /<\/system-out>/ { inside = 0 }
    /<\/testcase>/ && skipped {
        all++
        if (!counts[reason]++)
            order[++reasons] = reason
    }
    END {
        if (!all)
            exit 0
        printf "\n%d %s skipped:\n", all, all == 1 ? "test was" : "tests were"
        for (i = 1; i <= reasons; i++)
            printf "%6d  %s\n", counts[order[i]], plain(order[i])
        exit 1
    }
' "$build/$report" && exit $status
case ${CI:-} in
'' | 0 | false) exit $status ;;
esac
echo "run_tests: CI is set, and so every test has to run"
exit 1
