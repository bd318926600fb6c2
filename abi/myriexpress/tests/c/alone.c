/* What a program can do without a daemon: link, look at the handlers, ask for texts, and be refused. */
#include "myriexpress.h"
#include <stdio.h>
#include <string.h>

/* Declared by callers, in no header. */
extern int mx__regcache_clean(void *start, size_t length);

static mx_error_handler_t kept[2];

int main(void)
{
    mx_endpoint_t endpoint;
    unsigned code;

    kept[0] = MX_ERRORS_ARE_FATAL;
    kept[1] = MX_ERRORS_RETURN;
    if (!kept[0] || !kept[1] || kept[0] == kept[1]) {
        return 1;
    }
    if (mx_set_error_handler(kept[1]) != kept[0] || mx_set_error_handler(kept[1]) != kept[1]) {
        return 2;
    }
    if (mx_open_endpoint(MX_ANY_NIC, MX_ANY_ENDPOINT, 0, NULL, 0, &endpoint) != MX_NOT_INITIALIZED) {
        return 3;
    }
    for (code = 0; code < 100; code++) {
        if (!*mx_strerror((mx_return_t)code) || !*mx_strstatus((mx_status_code_t)code)) {
            return 4;
        }
    }
    if (mx__regcache_clean(NULL, 0) || mx__regcache_clean(kept, sizeof kept)) {
        return 5;
    }
    if (mx__init_api(0x201) != MX_BAD_LIB_VERSION || mx__init_api(0) != MX_BAD_LIB_VERSION) {
        return 6;
    }
    if (mx_finalize() != MX_SUCCESS || mx_finalize() != MX_SUCCESS) {
        return 7;
    }
    puts("alone");
    return 0;
}
