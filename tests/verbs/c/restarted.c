// Two open devices whose daemon is restarted. At each of these lines, the program waits for a line of input:
//
//   open ── there are two queue pairs, and no connection
//   connected ── both may send
//
// Then it sends in both directions, and prints "done".
#include "verbs.h"

static void pause_at(const char *line) {
    char answer[16];
    must(puts(line) >= 0 && !fflush(stdout));
    must(fgets(answer, sizeof answer, stdin));
    alarm(100); // Only a hang takes so long.
}

int main(void) {
    static const struct options RC = {.kind = IBV_QPT_RC, .rnr_retry = 7, .retry = 7};
    open_end(&a);
    open_end(&b);
    a.qp = make_qp(&a, &RC);
    b.qp = make_qp(&b, &RC);
    pause_at("open");
    connect_qp(&a, a.qp, b.qp->qp_num, &RC);
    connect_qp(&b, b.qp, a.qp->qp_num, &RC);
    pause_at("connected");
    exchange(&a, &b, 100);
    exchange(&b, &a, 100000);
    close_both();
    puts("done");
    return 0;
}
