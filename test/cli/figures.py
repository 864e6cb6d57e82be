#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes the figures of `lap bench --json`, read from standard input, from its own lists of rounds, by other means
than the command does, and says which differ. Exit status 1 if one does."""
import json
import math
import statistics
import sys

data = json.load(sys.stdin)
wrong = []
checked = 0


def same(what, got, expected, digits=2e-5, size=None):
    """Six digits are printed; a difference of two such numbers has as many of the larger."""
    global checked
    checked += 1
    if got is None or expected is None:
        if got is not expected:
            wrong.append(f'{what} is {got}, expected {expected}')
    elif not abs(got - expected) <= digits * max(abs(expected), size or 0):
        wrong.append(f'{what} is {got}, expected {expected}')


def median(values):
    return statistics.median(values)


def noise(values):
    """Half the distance of the quartiles."""
    if len(values) < 2:
        return None
    quartiles = statistics.quantiles(values, n=4, method='inclusive')
    return (quartiles[2] - quartiles[0]) / 2


rounds = data['rounds']
gemms = data['gemm_rounds_ms']
serial = data['serial_rounds_ms']
alone = [(gemms[2 * i] + gemms[2 * i + 1]) / 2 for i in range(rounds)]
serial_ect = [t - g for t, g in zip(serial, alone)]
same('the number of GEMMs', len(gemms), 2 * rounds)
same('gemm_ms', data['gemm_ms'], median(gemms))
same('serial_ms', data['serial_ms'], median(serial))
same('gemm_noise_pct', data['gemm_noise_pct'], 100 * noise(gemms) / median(gemms), 1e-4, 1)
same('gemm_tflops', data['gemm_tflops'], data['gemm_flops'] / median(gemms) * 1e-9)
if data['op'] in ('ag_gemm', 'gemm_rs') and data['n'] % data['ranks'] == 0 and data['k'] % data['ranks'] == 0:
    same('gemm_flops', data['gemm_flops'], 2 * data['m'] * data['n'] * data['k'] / data['ranks'])

for row in data['methods']:
    name, times = row['method'], row['rounds_ms']
    ect = [t - g for t, g in zip(times, alone)]
    size = max(times + gemms)
    same(f'the number of rounds of {name}', len(times), rounds)
    same(f'total_ms of {name}', row['total_ms'], median(times))
    same(f'noise_ms of {name}', row['noise_ms'], noise(times), size=size)
    same(f'noise_pct of {name}', row['noise_pct'], 100 * noise(times) / median(times), 1e-4, 1)
    same(f'ect_ms of {name}', row['ect_ms'], median(ect), size=size)
    same(f'ect_noise_ms of {name}', row['ect_noise_ms'], noise(ect), size=size)
    same(f'tflops of {name}', row['tflops'], data['gemm_flops'] / median(times) * 1e-9)
    same(f'error_over_tolerance of {name}', row['error_over_tolerance'], row['error'] / row['tolerance'])
    if row['ok'] != (row['error_over_tolerance'] <= 1):
        wrong.append(f'ok of {name} is {row["ok"]}, and its error {row["error_over_tolerance"]} of the tolerance')
    if row['error'] > row['max_err'] * 1.00002:
        wrong.append(f'error of {name} is {row["error"]}, more than the largest of all, {row["max_err"]}')
    if row['traced'] and row['traced']['calls']:
        same(f'wire_gbps of {name}', row['wire_gbps'], row['traced']['sent_bytes'] / median(times) * 1e-6)
    value = 1 - median(ect) / median(serial_ect)
    loss = 4e-5 * size / abs(median(serial_ect)) # what six digits leave of a quotient of differences
    each = [1 - e / s for e, s in zip(ect, serial_ect)]
    hidden = noise(each)
    if name == 'serial' or row['picked'] == 'serial':
        same(f'no_efficiency of {name}', row['no_efficiency'] == 'serial', True)
        same(f'efficiency of {name}', row['efficiency'], None)
    elif row['efficiency'] is not None:
        same(f'efficiency of {name}', row['efficiency'], value, 1e-4 + loss, 1)
        if not (row['efficiency_noise'] < 0.5 and row['efficiency_noise'] < abs(row['efficiency'])):
            wrong.append(f'efficiency of {name} is reported with an error bar of {row["efficiency_noise"]}')
        if not median(serial_ect) > noise(serial_ect) - 1e-4 * size:
            wrong.append(f'efficiency of {name} is printed where serial costs nothing')
    elif row['no_efficiency'] == 'noise':
        if hidden < 0.5 - loss and hidden < abs(value) - 2 * loss - 1e-4:
            wrong.append(f'efficiency of {name} is left out, though its error bar is {hidden}')
    elif row['no_efficiency'] == 'nothing to hide':
        if median(serial_ect) > noise(serial_ect) + 1e-4 * size:
            wrong.append(f'efficiency of {name} is left out, though serial costs {median(serial_ect)}')
    elif row['no_efficiency'] != 'wrong' or row['ok'] and data['methods'][0]['ok']:
        wrong.append(f'no_efficiency of {name} is {row["no_efficiency"]}')
    if row['efficiency_noise'] is not None and math.isfinite(hidden) and min(map(abs, serial_ect)) > 0.01 * size:
        same(f'efficiency_noise of {name}', row['efficiency_noise'], hidden, 1e-3, 1)

right = [row for row in data['methods'] if row['ok']]
named = [row for row in right if row['method'] == data['best']]
if bool(named) != bool(right) or named and named[0]['total_ms'] > min(row['total_ms'] for row in right):
    wrong.append(f'best is {data["best"]}, which is not right or not the fastest')
for line in wrong:
    print(f'# {line}')
print(f'{checked} figures, {len(wrong)} wrong')
sys.exit(1 if wrong or checked < 20 else 0)
