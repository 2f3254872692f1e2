/* SPDX-License-Identifier: Apache-2.0 */
#include "dev_cuda.h"
#include "tap.h"

int main(void)
{
    int count = -1;
    lf_err err;

    err.text[0] = 0;
    if (lf_cuda_devices(&count, &err) != 0) {
        TAP_CHECK(count == 0, "without a GPU the count is 0");
        TAP_CHECK(err.text[0] != 0, "and there is a reason");
        tap_skip("a GPU answers", err.text);
    } else {
        TAP_CHECK(count >= 1, "a GPU answers");
    }
    return tap_done();
}
