/* SPDX-License-Identifier: Apache-2.0
 *
 * What tp ranks load, on the CPU.
 */
#include "weight_case.h"

static int open_cpu(lf_dev **d, const lf_model *m, lf_numerics numerics, lf_err *err)
{
    return lf_cpu_open(d, m, numerics, 0, err);
}

int main(void)
{
    weight_cases(open_cpu);
    return tap_done();
}
