/* Makes the program of a seed, with a model of what plain TCP does. */
#ifndef DIFFERENTIAL_GENERATE_H
#define DIFFERENTIAL_GENERATE_H

#include "perform.h"

#define KINDS(X) \
    X(mixed) X(waiter_first) X(threads_in_set) X(set_before_connect) X(burst) X(fork_for_each) X(fork_beside_threads) X(raw_forks) \
    X(closed_beside_reader) X(stale_number) X(bad_arguments) X(cancelled) X(interrupted) X(restarted) X(stdio) X(time_limits) \
    X(both_first) X(set_in_set) X(connect_again) X(passed) X(executed) X(endings) X(drained) X(duplex)
#define X(name) KIND_##name,
enum kind { KINDS(X) KIND_COUNT };
#undef X
#define X(name) #name,
static const char *const KIND_NAMES[] = {KINDS(X)};
#undef X

struct place {
    int process, slot, set;
    enum style style;
};

struct model {
    bool live, wild;
    struct place end[2];
    int64_t flight[2]; /* bytes that side 0 and side 1 have sent, and that have not been received */
};

static struct random g;
static struct model models[CONNECTIONS];
static int connections, slots, processes, threads[PROCESSES], listener_slot[LISTENERS], listener_process[LISTENERS], listeners;
static bool is_open[PROCESSES][SLOTS], is_dead[PROCESSES];

static int emit(int process, int thread, enum operation op, enum mode mode, int slot, int other, int x, int y, int z, int64_t n)
{
    if (shared->steps >= STEPS) {
        fprintf(stderr, "seed %llu has too many steps\n", (unsigned long long)shared->seed);
        exit(2);
    }
    struct step *step = &shared->step[shared->steps];
    *step = (struct step){.process = (uint8_t)process, .thread = (uint8_t)thread, .op = (uint8_t)op, .mode = (uint8_t)mode, .slot = (int16_t)slot,
                          .other = (int16_t)other, .x = x, .y = y, .z = z, .n = n, .random = (uint32_t)next_random(&g)};
    for (int at = 0; at < LIST; at++)
        step->list[at] = -1;
    return (int)shared->steps++;
}

static bool has_room(void)
{
    return shared->steps < STEPS - 200 && slots < SLOTS - 24 && connections < CONNECTIONS - 8;
}

static void join(int step)
{
    emit(0, 0, OP_JOIN, SYNC, -1, -1, step, 0, 0, 0);
}

static int new_slot(void)
{
    return slots++;
}

static int some_thread(int process)
{
    return (int)below(&g, (uint32_t)threads[process]);
}

static void need_threads(int process, int count)
{
    while (threads[process] < count)
        emit(process, 0, OP_THREAD, SYNC, -1, -1, threads[process]++, 0, 0, 0);
}

static int step_on(int c, int side, int thread, enum operation op, enum mode mode, int x, int64_t n)
{
    struct place *end = &models[c].end[side];
    return emit(end->process, thread, op, mode, end->slot, end->set, x, 0, (int)end->style, n);
}

static int calls(int c)
{
    return models[c].wild ? ANY : ANY_TAME;
}

static int write_on(int c, int side, int64_t n, enum mode mode, int thread)
{
    models[c].flight[side] += n;
    return step_on(c, side, thread < 0 ? some_thread(models[c].end[side].process) : thread, OP_W, mode, calls(c), n);
}

/* One call, for a reader with one call. */
static void write_whole(int c, int side, int64_t n)
{
    models[c].flight[side] += n;
    step_on(c, side, some_thread(models[c].end[side].process), OP_W, SYNC, (int)below(&g, SENDMSG), n);
}

/* Receives what the other side sent. */
static int read_on(int c, int side, int64_t n, enum mode mode, int thread)
{
    models[c].flight[!side] -= n;
    int process = models[c].end[side].process;
    return step_on(c, side, thread < 0 ? some_thread(process) : thread, OP_R, mode, calls(c), n);
}

static void flush(int c, int side)
{
    if (models[c].flight[!side] > 0)
        read_on(c, side, models[c].flight[!side], SYNC, -1);
}

static void close_slot(int process, int slot, int thread)
{
    if (!is_open[process][slot] || is_dead[process])
        return;
    is_open[process][slot] = false;
    emit(process, thread < 0 ? some_thread(process) : thread, OP_CLOSE, SYNC, slot, -1, chance(&g, 12) ? 1 : chance(&g, 10) ? 2
        : 0, 0, 0, 0);
}

/* Closes the copies of an end in other processes. */
static void make_sole(int c, int side)
{
    struct place *end = &models[c].end[side];
    for (int process = 0; process < processes; process++)
        if (process != end->process)
            close_slot(process, end->slot, 0);
}

static void close_end(int c, int side)
{
    make_sole(c, side);
    close_slot(models[c].end[side].process, models[c].end[side].slot, -1);
}

static int new_listener(int process, bool nonblocking)
{
    int number = listeners++;
    listener_slot[number] = new_slot(), listener_process[number] = process;
    is_open[process][listener_slot[number]] = true;
    emit(process, 0, OP_LISTEN, SYNC, listener_slot[number], -1, number, nonblocking, 0, 0);
    return number;
}

static bool is_set_style(enum style style)
{
    return style >= BY_EDGE;
}

static uint32_t set_events(enum style style)
{
    return style == BY_LEVEL ? EPOLLIN : style == BY_ONE_SHOT ? (uint32_t)EPOLLIN | EPOLLONESHOT
        : (uint32_t)EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
}

/* Makes a set for the end, with the end in it. */
static void add_own_set(struct place *end)
{
    if (end->set < 0) {
        end->set = new_slot();
        is_open[end->process][end->set] = true;
        emit(end->process, some_thread(end->process), OP_SET, SYNC, end->set, -1, 1, 0, 0, 0);
    }
    emit(end->process, some_thread(end->process), OP_CTL, SYNC, end->set, end->slot, EPOLL_CTL_ADD, (int)set_events(end->style),
        0, 0);
}

static void to_style(int c, int side, enum style style)
{
    struct place *end = &models[c].end[side];
    if ((style == BLOCKING) != (end->style == BLOCKING))
        emit(end->process, some_thread(end->process), OP_NONBLOCK, SYNC, end->slot, -1, style != BLOCKING, (int)below(&g, 2), 0, 0);
    end->style = style;
}

static enum style some_style(void)
{
    return chance(&g, 40) ? BLOCKING : (enum style)below(&g, STYLES);
}

static void warm_up(int c, int rounds)
{
    if (rounds == 0)
        return;
    int64_t length = chance(&g, 80) ? between(&g, 1, 100) : between(&g, 1000, 20000);
    int first = (int)below(&g, 2), steps[2];
    bool same = models[c].end[0].process == models[c].end[1].process;
    if (same && threads[models[c].end[0].process] < 2)
        return;
    if (rounds > 40 && length > 100)
        rounds = 40;
    for (int side = 0; side < 2; side++) {
        steps[side] = step_on(c, side, same ? side : 0, OP_PINGPONG, FREE, rounds, length);
        shared->step[steps[side]].y = side == first;
    }
    join(steps[0]), join(steps[1]);
}

static int some_rounds(void)
{
    static const int rounds[] = {0, 0, 2, 3, 10, 30, 60, 120};
    return rounds[below(&g, 8)];
}

/* Makes a connection between a client's process and a listener. Styles below 0 are chosen. */
static int new_connection(int client, int listener, int client_style, int server_style, int rounds)
{
    int c = connections++, server = listener_process[listener];
    struct model *model = &models[c];
    *model = (struct model){.live = true, .wild = chance(&g, 15)};
    model->end[0] = (struct place){client, new_slot(), -1, client_style < 0 ? some_style() : (enum style)client_style};
    model->end[1] = (struct place){server, new_slot(), -1, server_style < 0 ? some_style() : (enum style)server_style};
    struct place *one = &model->end[0], *other = &model->end[1];
    is_open[client][one->slot] = is_open[server][other->slot] = true;
    bool early = chance(&g, 50), nonblocking = one->style != BLOCKING && chance(&g, 70);
    emit(client, some_thread(client), OP_SOCKET, SYNC, one->slot, -1, nonblocking, (int)below(&g, 2), 0, 0);
    if (is_set_style(one->style) && early)
        add_own_set(one);
    emit(client, some_thread(client), OP_CONNECT, SYNC, one->slot, one->set, listener, 2 * c, (int)(early ? one->style
        : BY_POLL), 0);
    if (is_set_style(one->style) && !early)
        add_own_set(one);
    if (one->style != BLOCKING && !nonblocking)
        emit(client, some_thread(client), OP_NONBLOCK, SYNC, one->slot, -1, 1, (int)below(&g, 2), 0, 0);
    bool at_once = chance(&g, 50);
    int flags = chance(&g, 30) ? -1 : (other->style != BLOCKING && at_once ? SOCK_NONBLOCK : 0) | (chance(&g, 50) ? SOCK_CLOEXEC
        : 0);
    emit(server, some_thread(server), OP_ACCEPT, SYNC, listener_slot[listener], other->slot, flags, 2 * c + 1, 0, 0);
    if (other->style != BLOCKING && !(at_once && flags >= 0))
        emit(server, some_thread(server), OP_NONBLOCK, SYNC, other->slot, -1, 1, (int)below(&g, 2), 0, 0);
    if (is_set_style(other->style))
        add_own_set(other);
    warm_up(c, rounds < 0 ? some_rounds() : rounds);
    return c;
}

static int64_t some_length(void)
{
    uint32_t dice = below(&g, 100);
    return dice < 50 ? between(&g, 1, 100) : dice < 80 ? between(&g, 100, 8000) : dice < 95 ? between(&g, 8000, 70000)
        : between(&g, 70000, 200000);
}

static void poll_on(int c, int side, int interest, int expected, int64_t limit)
{
    int step = step_on(c, side, some_thread(models[c].end[side].process), OP_POLL, SYNC, (int)below(&g, 6), limit);
    /* A set of its own would be the second one of this end. */
    if (models[c].end[side].set >= 0)
        shared->step[step].x %= 4;
    shared->step[step].y = expected;
    shared->step[step].list[0] = interest;
}

/* A poll on a connection that is open both ways. */
static void some_poll(int c, int side)
{
    struct model *model = &models[c];
    int interest = POLLIN | (chance(&g, 40) && model->flight[side] <= 4096 ? POLLOUT : 0) | (chance(&g, 40) ? POLLRDHUP : 0);
    if (model->flight[side] <= 4096 && chance(&g, 20))
        interest = POLLOUT;
    int expected = (interest & POLLIN && model->flight[!side] > 0 ? POLLIN : 0) | (interest & POLLOUT);
    poll_on(c, side, interest, expected, expected ? -1 : (int64_t)below(&g, 3));
}

/* Another number for the same socket. */
static void renumber(int c, int side)
{
    struct place *end = &models[c].end[side];
    if (end->set >= 0)
        return;
    int slot = new_slot(), thread = some_thread(end->process);
    emit(end->process, thread, OP_DUP, SYNC, end->slot, slot, (int)below(&g, 3), 0, 0, 0);
    is_open[end->process][slot] = true;
    int old = end->slot;
    if (chance(&g, 50)) {
        end->slot = slot; /* used by both numbers */
        write_on(c, side, between(&g, 1, 100), SYNC, -1);
        end->slot = old;
        write_on(c, side, between(&g, 1, 100), SYNC, -1);
    }
    make_sole(c, side);
    close_slot(end->process, old, -1);
    end->slot = slot;
}

static int some_live(void)
{
    int live[CONNECTIONS], count = 0;
    for (int c = 0; c < connections; c++)
        if (models[c].live)
            live[count++] = c;
    return count ? live[below(&g, (uint32_t)count)] : -1;
}

/* Both directions at once, or one, with much more than fits; threads run freely. */
static void bulk(int c, int64_t length)
{
    struct model *model = &models[c];
    bool both = threads[model->end[0].process] >= 2 && threads[model->end[1].process] >= 2 && !is_set_style(model->end[0].style) &&
                !is_set_style(model->end[1].style) && chance(&g, 60) && model->end[0].process != model->end[1].process;
    int first = (int)below(&g, 2), steps[4], count = 0;
    for (int turn = 0; turn < (both ? 2 : 1); turn++) {
        int side = turn ? !first : first;
        bool same = model->end[0].process == model->end[1].process;
        if (same && threads[model->end[0].process] < 2)
            return;
        int64_t rest = model->flight[side];
        steps[count++] = write_on(c, side, length, FREE, turn);
        steps[count++] = read_on(c, !side, rest + length, FREE, same ? 1 : turn);
    }
    /* Thread 0 and 1 of each process have one step each. */
    for (int at = 0; at < count; at++)
        join(steps[at]);
}

static void mix(int count)
{
    for (int done = 0; done < count && has_room(); done++) {
        int c = some_live(), side = (int)below(&g, 2);
        if (c < 0)
            return;
        struct model *model = &models[c];
        struct place *end = &model->end[side];
        int thread = some_thread(end->process);
        switch (below(&g, 16)) {
        case 0: case 1: case 2:
            if (model->flight[side] < 150000)
                write_on(c, side, some_length(), SYNC, -1);
            break;
        case 3: case 4:
            if (model->flight[!side] > 0)
                read_on(c, side, 1 + (int64_t)below(&g, (uint32_t)model->flight[!side]), SYNC, -1);
            break;
        case 5:
            flush(c, side);
            break;
        case 6:
            some_poll(c, side);
            break;
        case 7:
            if (model->flight[!side] < 60000)
                step_on(c, side, thread, OP_FIONREAD, SYNC, 0, model->flight[!side]);
            break;
        case 8:
            step_on(c, side, thread, OP_SOERROR, SYNC, 0, 0);
            break;
        case 9:
            if (end->set < 0)
                to_style(c, side, chance(&g, 50) ? BLOCKING : (enum style)between(&g, BY_POLL, BY_PSELECT));
            break;
        case 10:
            renumber(c, side);
            break;
        case 11: { /* a waiting reader */
            if (end->process == model->end[!side].process && threads[end->process] < 2)
                break;
            flush(c, side);
            int64_t length = some_length();
            int reader = read_on(c, side, length, BLOCK, thread);
            struct place *writer = &model->end[!side];
            write_on(c, !side, length, SYNC, writer->process == end->process ? (thread + 1) % threads[end->process] : -1);
            join(reader);
            break;
        }
        case 12:
            bulk(c, between(&g, 20000, 400000));
            break;
        case 13: {
            int call = (int)below(&g, NOTHING_CALLS);
            /* recv and recvmsg of no bytes wait for bytes. */
            if ((call != 1 && call != 6 && call != 10) || model->flight[!side] > 0 || end->style != BLOCKING)
                step_on(c, side, thread, OP_NOTHING, SYNC, call, 0);
            break;
        }
        case 14:
            if (model->flight[!side] == 0)
                step_on(c, side, thread, OP_EXPECT, SYNC, 0, 0);
            break;
        default:
            warm_up(c, model->flight[0] + model->flight[1] == 0 ? (int)between(&g, 1, 10) : 0);
        }
    }
}

/* --- ends of connections --- */

static int end_step(int c, int side, enum mode mode)
{
    return step_on(c, side, mode == BLOCK ? 0 : some_thread(models[c].end[side].process), OP_END, mode, (int)below(&g, RECV_ALL),
        0);
}

static void finish(int c, int how)
{
    struct model *model = &models[c];
    int a = (int)below(&g, 2), b = !a;
    if (!model->live)
        return;
    model->live = false;
    bool apart = model->end[0].process != model->end[1].process;
    if (how < 0)
        how = (int)below(&g, 14);
    if ((how == 4 || how == 12) && !apart)
        how = 0;
    if (how == 13 && threads[model->end[a].process] < 2)
        how = 5;
    make_sole(c, 0), make_sole(c, 1);
    if (how != 2 && how != 9 && how != 11)
        flush(c, a), flush(c, b);
    switch (how) {
    case 0: /* an end, and writes after it */
        close_end(c, a);
        poll_on(c, b, POLLIN | POLLRDHUP, POLLIN | POLLRDHUP, -1);
        end_step(c, b, SYNC);
        write_on(c, b, 1, SYNC, -1);
        write_on(c, b, 1, SYNC, -1);
        step_on(c, b, 0, OP_SOERROR, SYNC, 0, 0);
        end_step(c, b, SYNC);
        close_end(c, b);
        break;
    case 1: /* half closed */
        step_on(c, a, 0, OP_SHUT, SYNC, SHUT_WR, 0);
        end_step(c, b, SYNC);
        poll_on(c, b, POLLIN | POLLRDHUP, POLLIN | POLLRDHUP, -1);
        for (int times = (int)between(&g, 1, 4); times > 0; times--) {
            write_on(c, b, some_length(), SYNC, -1);
            flush(c, a);
        }
        close_end(c, b);
        end_step(c, a, SYNC);
        end_step(c, a, SYNC);
        poll_on(c, a, POLLIN | POLLRDHUP, POLLIN | POLLRDHUP | POLLHUP, -1);
        close_end(c, a);
        break;
    case 2: /* a reset, because bytes are unread; the peer has some to read before it */
    case 3:
        if (how == 3)
            step_on(c, a, 0, OP_OPTION, SYNC, 2, 0);
        else if (model->flight[a] > 20000)
            flush(c, b);
        if (how == 2)
            write_on(c, b, between(&g, 1, 1000), SYNC, -1);
        close_end(c, a);
        poll_on(c, b, POLLIN, POLLIN | POLLERR | POLLHUP, -1);
        flush(c, b);
        if (chance(&g, 50))
            step_on(c, b, 0, OP_SOERROR, SYNC, 0, 0);
        end_step(c, b, SYNC);
        end_step(c, b, SYNC);
        write_on(c, b, 1, SYNC, -1);
        close_end(c, b);
        break;
    case 4: { /* a waiter before the end */
        need_threads(model->end[b].process, 1);
        int step;
        if (chance(&g, 50)) {
            step = end_step(c, b, BLOCK);
        } else {
            step = step_on(c, b, 0, OP_ONE, BLOCK, (int)between(&g, 5, 8), 10);
        }
        close_end(c, a);
        join(step);
        end_step(c, b, SYNC);
        close_end(c, b);
        break;
    }
    case 5:
        step_on(c, a, 0, OP_SHUT, SYNC, SHUT_RDWR, 0);
        end_step(c, b, SYNC);
        end_step(c, a, SYNC);
        close_end(c, b);
        poll_on(c, a, POLLIN | POLLRDHUP, POLLIN | POLLRDHUP | POLLHUP, -1);
        close_end(c, a);
        break;
    case 6:
        step_on(c, a, 0, OP_SHUT, SYNC, SHUT_RD, 0);
        end_step(c, a, SYNC);
        write_on(c, a, some_length(), SYNC, -1);
        flush(c, b);
        close_end(c, a);
        end_step(c, b, SYNC);
        close_end(c, b);
        break;
    case 7: /* both at once */
        if (apart) {
            struct place *one = &model->end[0], *other = &model->end[1];
            int first = emit(one->process, 0, OP_CLOSE, FREE, one->slot, -1, 0, 0, 0, 0);
            int second = emit(other->process, 0, OP_CLOSE, FREE, other->slot, -1, 0, 0, 0, 0);
            is_open[one->process][one->slot] = is_open[other->process][other->slot] = false;
            join(first), join(second);
        } else {
            close_end(c, 0), close_end(c, 1);
        }
        break;
    case 8: { /* past glibc */
        struct place *end = &model->end[a];
        is_open[end->process][end->slot] = false;
        emit(end->process, 0, OP_CLOSE, SYNC, end->slot, -1, 1, 0, 0, 0);
        end_step(c, b, SYNC);
        close_end(c, b);
        break;
    }
    case 9: /* bytes, then the end */
    case 10:
        flush(c, a);
        write_on(c, a, how == 9 ? some_length() : (int64_t)between(&g, 60000, 250000), SYNC, -1);
        close_end(c, a);
        if (chance(&g, 50))
            poll_on(c, b, POLLIN, POLLIN, -1);
        flush(c, b);
        end_step(c, b, SYNC);
        close_end(c, b);
        break;
    case 12: { /* a writer waits for room, and the reader goes */
        to_style(c, b, BLOCKING);
        int writer = step_on(c, b, 0, OP_ONE, BLOCK, 12, 0);
        close_end(c, a);
        join(writer);
        close_end(c, b);
        break;
    }
    case 13: { /* another thread ends a wait */
        int reader = emit(model->end[a].process, 1, OP_END, BLOCK, model->end[a].slot, model->end[a].set, 0, 0,
            (int)model->end[a].style, 0);
        step_on(c, a, 0, OP_SHUT, SYNC, chance(&g, 50) ? SHUT_RD : SHUT_RDWR, 0);
        join(reader);
        close_end(c, a), close_end(c, b);
        break;
    }
    default:
        close_end(c, a), close_end(c, b);
    }
}

/* The process of an end dies; its other connections must have ended. */
static void die(int process)
{
    struct { int c, side; bool unread; } left[CONNECTIONS];
    int count = 0;
    for (int c = 0; c < connections; c++)
        for (int side = 0; side < 2; side++) {
            struct model *model = &models[c];
            if (!model->live || model->end[side].process != process)
                continue;
            if (model->end[!side].process == process) {
                model->live = false;
                continue;
            }
            make_sole(c, side), make_sole(c, !side);
            bool unread = chance(&g, 30);
            flush(c, side);
            if (model->flight[side] > 20000)
                flush(c, !side);
            if (unread)
                write_on(c, !side, between(&g, 1, 500), SYNC, -1);
            left[count].c = c, left[count].side = !side, left[count++].unread = unread;
        }
    int waiter = -1;
    if (count == 1 && !left[0].unread && models[left[0].c].flight[!left[0].side] == 0 && chance(&g, 60))
        waiter = end_step(left[0].c, left[0].side, BLOCK);
    switch (below(&g, 3)) {
    case 0:
        emit(process, some_thread(process), OP_KILL, SYNC, -1, -1, 0, 0, 0, 0);
        break;
    default:
        emit(process, some_thread(process), OP_EXIT, DIES, -1, -1, (int)below(&g, 2), 0, 0, 0);
    }
    is_dead[process] = true;
    if (waiter >= 0)
        join(waiter);
    for (int at = 0; at < count; at++) {
        int c = left[at].c, side = left[at].side;
        models[c].live = false;
        flush(c, side);
        end_step(c, side, SYNC);
        end_step(c, side, SYNC);
        close_end(c, side);
    }
}

/* A child of a process; all numbers are copied. */
static int fork_from(int process, int thread, int way)
{
    int child = processes++;
    threads[child] = 1;
    for (int slot = 0; slot < SLOTS; slot++)
        is_open[child][slot] = is_open[process][slot];
    emit(process, thread, OP_FORK, SYNC, -1, -1, child, way, 0, 0);
    return child;
}

/* The end belongs to another process from now on. */
static void move_end(int c, int side, int process)
{
    models[c].end[side].process = process;
    if (is_set_style(models[c].end[side].style)) {
        models[c].end[side].style = BY_POLL;
        models[c].end[side].set = -1;
    }
}

static void talk(int c, int times)
{
    for (; times > 0 && has_room(); times--) {
        int side = (int)below(&g, 2);
        write_on(c, side, some_length(), SYNC, -1);
        if (chance(&g, 70))
            flush(c, !side);
    }
    flush(c, 0), flush(c, 1);
}

static void settle(int c)
{
    flush(c, 0), flush(c, 1);
}

/* What happens to an end whose process forks. */
static void forked(int c, int side, int way)
{
    struct place *end = &models[c].end[side];
    int parent = end->process, thread = some_thread(parent);
    if (chance(&g, 60))
        settle(c);
    int child = fork_from(parent, thread, way);
    /* Other connections of the parent are not the child's. */
    for (int other = 0; other < connections; other++)
        for (int at = 0; at < 2; at++)
            if (other != c && models[other].live && models[other].end[at].process == parent)
                close_slot(child, models[other].end[at].slot, 0);
    if (models[c].end[!side].process == parent)
        close_slot(child, models[c].end[!side].slot, 0);
    switch (below(&g, 3)) {
    case 0: /* the parent closes, the child goes on */
        close_slot(parent, end->slot, -1);
        move_end(c, side, child);
        warm_up(c, models[c].flight[0] + models[c].flight[1] ? 0 : some_rounds());
        talk(c, 4);
        break;
    case 1: /* the child exits or closes, the parent goes on */
        if (chance(&g, 50)) {
            emit(child, 0, OP_EXIT, DIES, -1, -1, (int)below(&g, 2), 0, 0, 0);
            is_dead[child] = true;
        } else {
            close_slot(child, end->slot, 0);
        }
        warm_up(c, models[c].flight[0] + models[c].flight[1] ? 0 : some_rounds());
        talk(c, 4);
        break;
    default: /* both go on */
        for (int turn = 0; turn < 6 && has_room(); turn++) {
            struct place saved = *end;
            if (chance(&g, 50)) {
                move_end(c, side, child);
                end->slot = saved.slot;
            }
            talk(c, 1);
            *end = saved;
        }
        if (chance(&g, 50)) {
            close_slot(parent, end->slot, -1);
            move_end(c, side, child);
        } else {
            close_slot(child, end->slot, 0);
        }
        talk(c, 2);
    }
}

/* --- kinds --- */

/* Two processes or one, with threads, and a listener in the first. */
static int begin(int most_threads)
{
    processes = chance(&g, 85) ? 2 : 3;
    shared->initial = (uint32_t)processes;
    for (int process = 0; process < processes; process++)
        threads[process] = 1;
    for (int process = 0; process < processes; process++)
        if (most_threads > 1)
            need_threads(process, (int)between(&g, 1, (uint32_t)most_threads));
    return new_listener(0, chance(&g, 40));
}

static int client(void)
{
    return (int)between(&g, 1, shared->initial - 1);
}

static void kind_mixed(void)
{
    int listener = begin(4);
    for (int count = (int)between(&g, 1, 4); count > 0; count--)
        new_connection(chance(&g, 10) && threads[0] > 1 ? 0 : client(), listener, -1, -1, -1);
    mix((int)between(&g, 20, 60));
}

/* A thread waits in a set, which has the listener or nothing, before there is a connection; connections are added meanwhile. */
static void kind_waiter_first(void)
{
    int listener = begin(1), from = client(), set = new_slot(), rounds = (int)between(&g, 1, 3);
    bool nonblocking = chance(&g, 50);
    need_threads(0, 2);
    emit(0, 0, OP_SET, SYNC, set, -1, 1, 0, 0, 0);
    if (chance(&g, 50))
        emit(0, 0, OP_CTL, SYNC, set, listener_slot[listener], EPOLL_CTL_ADD, (int)(EPOLLIN | EPOLLET), 0, 0);
    int call = (int)below(&g, 3);
    for (int round = 0; round < rounds; round++) {
        /* The waiter gets the first bytes of a connection that is added while it waits. */
        int slot = slots + 1; /* of the accepted socket, see new_connection */
        int waiter = emit(0, 1, OP_SETWAIT, BLOCK, set, -1, call, 0, 1, -1);
        uint32_t how = chance(&g, 50) ? (uint32_t)EPOLLET : 0;
        shared->step[waiter].list[0] = slot, shared->step[waiter].list[1] = EPOLLIN;
        int saved = threads[0];
        threads[0] = 1; /* The other thread waits. */
        int c = new_connection(from, listener, -1, nonblocking ? BY_POLL : BLOCKING, -1);
        if (models[c].end[1].slot != slot)
            abort();
        emit(0, 0, OP_CTL, SYNC, set, slot, EPOLL_CTL_ADD, (int)(EPOLLIN | how), 0, 0);
        warm_up(c, chance(&g, 50) ? some_rounds() : 0);
        write_on(c, 0, between(&g, 1, 3000), SYNC, -1);
        join(waiter);
        threads[0] = saved;
        flush(c, 1);
        if (how == EPOLLET) {
            /* More bytes by edges only. */
            int64_t length = between(&g, 1, 5000);
            int drain = emit(0, 1, OP_DRAIN, BLOCK, set, -1, (int)below(&g, 2), (int)between(&g, 50, 9000), 0, length);
            shared->step[drain].list[0] = slot;
            write_on(c, 0, length, SYNC, -1);
            models[c].flight[0] = 0;
            join(drain);
        }
        /* Non-blocking from now on: the draining changed it. */
        if (how == EPOLLET) {
            models[c].end[1].style = BY_POLL;
            emit(0, 0, OP_NONBLOCK, SYNC, slot, -1, 1, 0, 0, 0);
        }
        emit(0, 0, OP_CTL, SYNC, set, slot, EPOLL_CTL_DEL, 0, 0, 0);
        mix(5);
    }
}

/* Several threads serve one set: one-shot, edges, or level with one thread. */
static void kind_threads_in_set(void)
{
    int listener = begin(1), set = new_slot(), stop = new_slot(), workers = (int)between(&g, 2, 4), count = (int)between(&g, 1, 4);
    need_threads(0, workers + 1);
    int mode = (int)below(&g, 3); /* 0 edge, 1 one-shot, 2 one-shot and edge */
    bool early = chance(&g, 50), echo = chance(&g, 70);
    uint32_t events = EPOLLIN | (mode == 0 ? (uint32_t)EPOLLET : mode == 1 ? (uint32_t)EPOLLONESHOT
        : (uint32_t)EPOLLONESHOT | EPOLLET);
    emit(0, 0, OP_SET, SYNC, set, -1, 1, 0, 0, 0);
    emit(0, 0, OP_EVENTFD, SYNC, stop, -1, 0, 0, 0, 0);
    emit(0, 0, OP_CTL, SYNC, set, stop, EPOLL_CTL_ADD, EPOLLIN, 0, 0);
    need_threads(1, count < THREADS ? count : THREADS);
    int clients[4], serving[4], talking[4];
    int64_t length = between(&g, 1, chance(&g, 70) ? 300 : 9000), total = 0;
    int rounds = (int)between(&g, 5, 80);
    if (length > 300)
        rounds = rounds < 20 ? rounds : 20;
    int64_t bulk_length = between(&g, 50000, 300000);
    total = (echo ? length * rounds : bulk_length) * count;
    for (int phase = 0; phase < 2; phase++) {
        if (phase == (early ? 0 : 1))
            for (int at = 0; at < workers; at++) {
                serving[at] = emit(0, 1 + at, OP_SERVE, BLOCK, set, stop, (int)below(&g, 2), echo, mode, total);
                shared->step[serving[at]].list[0] = (int)between(&g, 1, 4);
                shared->step[serving[at]].list[1] = (int)between(&g, 100, 20000);
                shared->step[serving[at]].list[2] = 0;
            }
        if (phase == 0) {
            int saved = threads[0];
            threads[0] = 1;
            for (int at = 0; at < count; at++) {
                clients[at] = new_connection(1, listener, (int)below(&g, BY_EDGE), BY_POLL, mode == 0 || !early ? some_rounds()
                    : 0);
                emit(0, 0, OP_CTL, SYNC, set, models[clients[at]].end[1].slot, EPOLL_CTL_ADD, (int)events, 0, 0);
            }
            threads[0] = saved;
        }
    }
    for (int at = 0; at < count; at++) {
        if (echo) {
            talking[at] = step_on(clients[at], 0, at, OP_PINGPONG, FREE, rounds, length);
            shared->step[talking[at]].y = 1;
        } else {
            talking[at] = write_on(clients[at], 0, bulk_length, FREE, at);
            models[clients[at]].flight[0] = 0;
        }
    }
    for (int at = 0; at < count; at++)
        join(talking[at]);
    for (int at = 0; at < workers; at++)
        join(serving[at]);
    for (int at = 0; at < count; at++)
        emit(0, 0, OP_CTL, SYNC, set, models[clients[at]].end[1].slot, EPOLL_CTL_DEL, 0, 0, 0);
    mix(5);
}

/* The client's set has the socket before connect, and tells of the connection, of bytes and of the end. */
static void kind_set_before_connect(void)
{
    int listener = begin(2);
    for (int round = (int)between(&g, 1, 3); round > 0; round--) {
        int from = client(), c = connections++, one = new_slot(), other = new_slot(), set = new_slot(), thread = some_thread(from);
        uint32_t how = chance(&g, 60) ? (uint32_t)EPOLLET : 0, events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | how;
        models[c] = (struct model){.live = true, .end = {{from, one, set, how ? BY_EDGE : BY_LEVEL}, {0, other, -1, some_style()
            ? BY_POLL : BLOCKING}}};
        is_open[from][one] = is_open[from][set] = is_open[0][other] = true;
        emit(from, thread, OP_SET, SYNC, set, -1, 1, 0, 0, 0);
        emit(from, thread, OP_SOCKET, SYNC, one, -1, 1, 1, 0, 0);
        emit(from, thread, OP_CTL, SYNC, set, one, EPOLL_CTL_ADD, (int)events, 0, 0);
        int waited = emit(from, thread, OP_SETWAIT, SYNC, set, -1, (int)below(&g, 3), 0, 0, 2);
        (void)waited; /* EPOLLOUT and EPOLLHUP of a socket that is not connected */
        emit(from, thread, OP_CONNECT, SYNC, one, set, listener, 2 * c, how ? BY_EDGE : BY_POLL, 0);
        emit(0, some_thread(0), OP_ACCEPT, SYNC, listener_slot[listener], other, models[c].end[1].style == BLOCKING ? 0
            : SOCK_NONBLOCK, 2 * c + 1, 0, 0);
        if (chance(&g, 80))
            warm_up(c, some_rounds());
        if (how) {
            int64_t length = between(&g, 1, 30000);
            int drain = emit(from, thread, OP_DRAIN, BLOCK, set, -1, (int)below(&g, 2), (int)between(&g, 500, 9000), 0, length);
            shared->step[drain].list[0] = one;
            write_on(c, 1, length, SYNC, -1);
            models[c].flight[1] = 0;
            join(drain);
        }
        mix(8);
    }
}

static void burst_of(int server, int from, int listener, int way)
{
    int32_t what = (int32_t)below(&g, BURSTS), up = chance(&g, 80) ? (int32_t)between(&g, 1, 300) : (int32_t)between(&g, 300,
        20000), down = chance(&g, 80) ? (int32_t)between(&g, 1, 300) : (int32_t)between(&g, 300, 20000),
            rounds = (int32_t)between(&g, 2, 12);
    int count = way >= 2 && way <= 4 ? (int)between(&g, 3, 8) : (int)between(&g, 12, 40);
    int serving = emit(server, 0, OP_SERVER, FREE, listener_slot[listener], -1, count, way, (int)below(&g, 2), 0);
    int asking = emit(from, 0, OP_CLIENTS, FREE, -1, -1, count, (int)below(&g, 2), 0, 0);
    int32_t list[] = {what, up, down, rounds, listener};
    memcpy(shared->step[serving].list, list, sizeof list);
    memcpy(shared->step[asking].list, list, sizeof list);
    join(asking), join(serving);
}

static void kind_burst(void)
{
    int listener = begin(1), way = chance(&g, 70) ? (int)below(&g, 2) : (int)between(&g, 5, 6), from = client();
    burst_of(0, from, listener, way);
    emit(0, 0, OP_COUNT, SYNC, -1, -1, 0, 0, 0, 0), emit(from, 0, OP_COUNT, SYNC, -1, -1, 0, 0, 0, 0);
    burst_of(0, from, listener, way), burst_of(0, from, listener, way);
    emit(0, 0, OP_COUNT, SYNC, -1, -1, 1, 0, 0, 8), emit(from, 0, OP_COUNT, SYNC, -1, -1, 1, 0, 0, 8);
}

static void kind_fork_for_each(void)
{
    int listener = begin(1);
    if (chance(&g, 30))
        need_threads(0, 2);
    int way = (int)between(&g, 2, chance(&g, 60) ? 2 : 4);
    burst_of(0, client(), listener, way);
    if (chance(&g, 50))
        burst_of(0, client(), listener, way);
    /* Longer ones, by steps. */
    int c = new_connection(client(), listener, -1, BLOCKING, chance(&g, 50) ? 0 : -1);
    int child = fork_from(0, 0, way - 2);
    close_slot(0, models[c].end[1].slot, 0);
    move_end(c, 1, child);
    warm_up(c, some_rounds());
    talk(c, 5);
}

static void kind_forks(int way)
{
    int listener = begin(way < 0 ? 2 : 4);
    if (way >= 0)
        need_threads(0, 2);
    for (int count = (int)between(&g, 1, 2); count > 0; count--)
        new_connection(client(), listener, -1, -1, -1);
    mix(6);
    for (int times = (int)between(&g, 1, 3); times > 0 && processes < PROCESSES - 2; times--) {
        int c = some_live(), waiter = -1, thread = 0;
        /* Another thread of the process waits for bytes meanwhile. */
        int other = new_connection(client(), listener, -1, BLOCKING, 20);
        if (way >= 0 && threads[0] >= 2) {
            thread = threads[0]--;
            thread--;
            waiter = read_on(other, 1, 500, BLOCK, thread);
        }
        models[other].live = false;
        forked(c, (int)below(&g, 2), way < 0 ? (int)between(&g, 1, 2) : way);
        models[other].live = true;
        for (int process = 0; process < processes; process++)
            if (process != 0 && process != models[other].end[0].process)
                close_slot(process, models[other].end[1].slot, 0), close_slot(process, models[other].end[0].slot, 0);
        if (waiter >= 0) {
            models[other].flight[0] = 0;
            write_on(other, 0, 500, SYNC, -1);
            models[other].flight[0] = 0;
            join(waiter);
            threads[0]++;
        }
        mix(6);
    }
}

static void kind_fork_beside_threads(void)
{
    kind_forks(0);
}

static void kind_raw_forks(void)
{
    kind_forks(-1);
}

/* A number is closed, or gets another file, while a thread reads from its socket. */
static void kind_closed_beside_reader(void)
{
    int listener = begin(1);
    need_threads(0, 2);
    for (int times = (int)between(&g, 1, 3); times > 0; times--) {
        threads[0] = 1; /* The other thread reads. */
        int c = new_connection(client(), listener, -1, BLOCKING, -1), side = 1;
        struct place *end = &models[c].end[side];
        int64_t length = between(&g, 1, 2000);
        int reader = step_on(c, side, 1, OP_ONE, BLOCK, (int)below(&g, 4), 4000);
        models[c].live = false;
        uint32_t how = below(&g, 4);
        if (how == 3) { /* a dup goes on; the number that is read from is closed */
            int slot = new_slot();
            emit(0, 0, OP_DUP, SYNC, end->slot, slot, (int)below(&g, 3), 0, 0, 0);
            is_open[0][slot] = true;
            close_slot(0, end->slot, 0);
            end->slot = slot;
            write_whole(c, 0, length);
            join(reader);
            models[c].flight[0] = 0;
            models[c].live = true;
            mix(4);
            continue;
        }
        if (how == 0) {
            close_slot(0, end->slot, 0);
        } else if (how == 1) { /* dup2 of another socket */
            int other = new_connection(client(), listener, -1, BLOCKING, 0);
            emit(0, 0, OP_DUP, SYNC, models[other].end[1].slot, end->slot, (int)between(&g, 3, 4), 0, 0, 0);
            write_whole(c, 0, length);
            join(reader);
            end_step(c, 0, SYNC);
            close_end(c, 0);
            /* The number is one of the other connection. */
            int slot = models[other].end[1].slot;
            models[other].end[1].slot = end->slot;
            close_slot(0, slot, 0);
            talk(other, 2);
            continue;
        } else { /* dup2 of a file that is no socket */
            int slot = new_slot();
            is_open[0][slot] = true;
            emit(0, 0, OP_EVENTFD, SYNC, slot, -1, 0, 0, 0, 0);
            emit(0, 0, OP_DUP, SYNC, slot, end->slot, (int)between(&g, 3, 4), 0, 0, 0);
        }
        write_whole(c, 0, length);
        join(reader);
        end_step(c, 0, SYNC);
        close_end(c, 0);
    }
    threads[0] = 2;
    mix(3);
}

/* A number is closed past glibc, and the next socket gets it. */
static void kind_stale_number(void)
{
    int listener = begin(2);
    for (int times = (int)between(&g, 2, 5); times > 0; times--) {
        int c = new_connection(client(), listener, -1, -1, -1), side = (int)below(&g, 2);
        if (chance(&g, 40))
            write_on(c, side, between(&g, 1, 1000), SYNC, -1);
        settle(c);
        models[c].live = false;
        struct place *end = &models[c].end[side];
        is_open[end->process][end->slot] = false;
        emit(end->process, some_thread(end->process), OP_CLOSE, SYNC, end->slot, -1, 1, 0, 0, 0);
        int next = -1;
        if (chance(&g, 80))
            next = new_connection(side == 0 ? end->process : client(), listener, -1, -1, -1);
        end_step(c, !side, SYNC);
        close_end(c, !side);
        if (next >= 0)
            talk(next, 3);
    }
    mix(5);
}

static void kind_bad_arguments(void)
{
    int listener = begin(2), c = new_connection(client(), listener, -1, -1, -1);
    for (int times = (int)between(&g, 8, 25); times > 0; times--) {
        int side = (int)below(&g, 2), call = (int)below(&g, BAD_CALLS);
        bool has_bytes = chance(&g, 60);
        if (call == 18 || call == 38)
            has_bytes = true;
        flush(c, side);
        if (has_bytes)
            write_on(c, !side, between(&g, 100, 1000), SYNC, -1);
        struct model *model = &models[c];
        step_on(c, side, some_thread(model->end[side].process), OP_BAD, SYNC, call, model->flight[!side]);
        /* Calls with a good part move bytes. */
        int all = step_on(c, side, 0, OP_RALL, SYNC, ANY_TAME, 0);
        (void)all;
        step_on(c, !side, 0, OP_RALL, SYNC, ANY_TAME, 0);
        model->flight[0] = model->flight[1] = 0;
        if (call == 27)
            continue;
    }
    mix(6);
    if (chance(&g, 50))
        emit(client(), 0, OP_REFUSED, SYNC, -1, -1, 0, (int)below(&g, 2), 0, 0);
}

static void kind_cancelled(void)
{
    int listener = begin(1);
    for (int times = (int)between(&g, 1, 3); times > 0; times--) {
        threads[0] = 1;
        int c = new_connection(client(), listener, -1, BLOCKING, -1);
        need_threads(0, 2);
        int call = (int)below(&g, 11), set = new_slot();
        if (call == 9 || call == 10) {
            emit(0, 0, OP_SET, SYNC, set, -1, 1, 0, 0, 0);
            emit(0, 0, OP_CTL, SYNC, set, models[c].end[1].slot, EPOLL_CTL_ADD, EPOLLIN, 0, 0);
            models[c].end[1].set = set;
        }
        if (chance(&g, 20) && call < 9) { /* blocked in write */
            step_on(c, 1, 1, OP_ONE, BLOCK, 12, 0);
            emit(0, 0, OP_CANCEL, SYNC, -1, -1, 1, 0, 0, 0);
            threads[0] = 1;
            /* What the cancelled call has sent is not known. */
            models[c].live = false;
            close_end(c, 0), close_end(c, 1);
            continue;
        }
        step_on(c, 1, 1, OP_ONE, BLOCK, call, 100);
        emit(0, 0, OP_CANCEL, SYNC, -1, -1, 1, 0, 0, 0);
        threads[0] = 1;
        talk(c, 3);
        mix(4);
    }
}

/* Signals during blocking calls. */
static void signalled(bool restarts)
{
    int listener = begin(1);
    need_threads(0, 2);
    for (int times = (int)between(&g, 1, 4); times > 0; times--) {
        int c = new_connection(client(), listener, -1, BLOCKING, -1), other = -1, set = -1;
        int call = !restarts && chance(&g, 15) ? 12 : (int)below(&g, 11); /* 12: a writer waits for room */
        bool writes = call != 12 && chance(&g, 40);
        if (writes)
            other = chance(&g, 50) ? c : new_connection(client(), listener, BLOCKING, BLOCKING, 30);
        emit(0, 0, OP_ACTION, SYNC, other >= 0 ? models[other].end[1].slot : -1, -1, restarts, 0, 0, 20);
        if (call == 9 || call == 10) {
            set = new_slot();
            emit(0, 0, OP_SET, SYNC, set, -1, 1, 0, 0, 0);
            emit(0, 0, OP_CTL, SYNC, set, models[c].end[1].slot, EPOLL_CTL_ADD, EPOLLIN, 0, 0);
            models[c].end[1].set = set;
        }
        bool ends = !restarts || call >= 5; /* poll and its kin are never restarted */
        int64_t length = between(&g, 1, 100);
        int waiting = step_on(c, 1, 1, OP_ONE, BLOCK, call, length);
        emit(0, 1, OP_SIGNAL, SYNC, -1, -1, waiting, ends, 0, 0);
        if (other >= 0)
            models[other].flight[1] += 20, flush(other, 0);
        if (!ends)
            write_whole(c, 0, length), models[c].flight[0] = 0;
        join(waiting);
        if (call == 12)
            step_on(c, 0, 0, OP_RALL, SYNC, ANY_TAME, 0);
        talk(c, 3);
        mix(3);
    }
}

static void kind_interrupted(void)
{
    signalled(false);
}

static void kind_restarted(void)
{
    signalled(true);
}

static void kind_stdio(void)
{
    int listener = begin(1);
    for (int times = (int)between(&g, 1, 3); times > 0; times--) {
        int c = new_connection(client(), listener, -1, BLOCKING, -1), way = (int)below(&g, 3);
        to_style(c, 0, BLOCKING);
        if (chance(&g, 30))
            write_on(c, 0, between(&g, 1, 3000), SYNC, -1);
        models[c].live = false;
        bool printed = way == 1 || chance(&g, 50), scanned = way != 1 && (!printed || chance(&g, 60));
        int print = way == 2 ? 3 : (int)below(&g, 3), scan = way == 2 ? 7 : (int)between(&g, 4, 6);
        int copy = -1;
        if (printed && scanned && way != 2) { /* two streams have two numbers */
            copy = new_slot();
            is_open[0][copy] = true;
            emit(0, 0, OP_DUP, SYNC, models[c].end[1].slot, copy, 0, 0, 0, 0);
        }
        for (int turn = (int)between(&g, 2, 8); turn > 0; turn--) {
            if (scanned && chance(&g, 60)) {
                if (models[c].flight[0] == 0 || chance(&g, 50))
                    write_on(c, 0, between(&g, 1, 3000), SYNC, -1);
                int64_t length = chance(&g, 50) ? models[c].flight[0] : between(&g, 1, (uint32_t)models[c].flight[0]);
                if (length > 100000)
                    length = 100000;
                models[c].flight[0] -= length;
                step_on(c, 1, 0, OP_STDIO, SYNC, scan, length);
            }
            if (printed && chance(&g, 60)) {
                int64_t length = between(&g, 1, chance(&g, 80) ? 200 : 9000);
                int step = step_on(c, 1, 0, OP_STDIO, SYNC, print, length);
                if (copy >= 0)
                    shared->step[step].slot = (int16_t)copy;
                models[c].flight[1] += length;
                if (chance(&g, 60))
                    flush(c, 0);
            }
            if (chance(&g, 15))
                write_on(c, 1, between(&g, 1, 100), SYNC, -1);
        }
        while (models[c].flight[0] > 0) {
            int64_t length = models[c].flight[0] < 100000 ? models[c].flight[0] : 100000;
            if (scanned)
                step_on(c, 1, 0, OP_STDIO, SYNC, scan, length), models[c].flight[0] -= length;
            else
                flush(c, 1);
        }
        flush(c, 0);
        if (copy >= 0)
            close_slot(0, copy, 0);
        close_end(c, 1);
        end_step(c, 0, SYNC);
        close_end(c, 0);
    }
}

static void kind_time_limits(void)
{
    int listener = begin(2);
    for (int times = (int)between(&g, 1, 2); times > 0; times--) {
        int c = new_connection(client(), listener, BLOCKING, BLOCKING, -1), side = (int)below(&g, 2);
        step_on(c, side, 0, OP_OPTION, SYNC, 0, between(&g, 1, 8));
        step_on(c, side, 0, OP_ONE, SYNC, (int)below(&g, 5), 100);
        if (chance(&g, 50)) { /* a part of MSG_WAITALL */
            write_on(c, !side, 10, SYNC, -1);
            models[c].flight[!side] = 0;
            step_on(c, side, 0, OP_ONE, SYNC, 4, 100);
        }
        step_on(c, side, 0, OP_OPTION, SYNC, 0, 0);
        if (chance(&g, 50)) {
            step_on(c, side, 0, OP_OPTION, SYNC, 1, between(&g, 1, 8));
            step_on(c, side, 0, OP_FILL, SYNC, 0, 0);
            step_on(c, !side, 0, OP_RALL, SYNC, ANY_TAME, 0);
            step_on(c, side, 0, OP_OPTION, SYNC, 1, 0);
        }
        for (int waits = (int)between(&g, 1, 4); waits > 0; waits--)
            poll_on(c, (int)below(&g, 2), POLLIN, 0, (int64_t)between(&g, 0, 4));
        talk(c, 2);
    }
    mix(5);
}

/* Both ends send before one reads. */
static void kind_both_first(void)
{
    int listener = begin(2);
    for (int times = (int)between(&g, 1, 2); times > 0; times--) {
        int c = new_connection(client(), listener, -1, -1, chance(&g, 50) ? 0 : -1);
        for (int turn = (int)between(&g, 1, 3); turn > 0; turn--) {
            uint32_t most = chance(&g, 40) ? 1800000 : chance(&g, 50) ? 150000 : 300;
            int64_t one = between(&g, 1, most), other = between(&g, 1, most);
            if (chance(&g, 60)) {
                int first = write_on(c, 0, one, FREE, 0), second = write_on(c, 1, other, FREE, 0);
                join(first), join(second);
            } else {
                write_on(c, 0, one, SYNC, -1), write_on(c, 1, other, SYNC, -1);
            }
            if (chance(&g, 50)) {
                flush(c, 0), flush(c, 1);
            } else {
                int first = read_on(c, 0, other, FREE, 0), second = read_on(c, 1, one, FREE, 0);
                join(first), join(second);
            }
        }
        if (chance(&g, 40)) { /* until nothing fits */
            for (int side = 0; side < 2; side++)
                step_on(c, side, 0, OP_FILL, SYNC, 1, 0);
            for (int side = 0; side < 2; side++)
                step_on(c, side, 0, OP_RALL, SYNC, ANY_TAME, 0);
        }
        warm_up(c, (int)below(&g, 5));
    }
    mix(4);
}

/* A set is watched by poll, select or another set. */
static void kind_set_in_set(void)
{
    int listener = begin(1);
    need_threads(0, 2);
    int set = new_slot(), outer = new_slot(), count = (int)between(&g, 1, 3), all[3];
    emit(0, 0, OP_SET, SYNC, set, -1, 1, 0, 0, 0);
    bool nested = chance(&g, 50);
    if (nested) {
        emit(0, 0, OP_SET, SYNC, outer, -1, 1, 0, 0, 0);
        emit(0, 0, OP_CTL, SYNC, outer, set, EPOLL_CTL_ADD, EPOLLIN, 0, 0);
    }
    for (int at = 0; at < count; at++) {
        bool early = chance(&g, 50);
        int c = all[at] = new_connection(client(), listener, -1, (int)below(&g, BY_EDGE), early ? 0 : some_rounds());
        emit(0, 0, OP_CTL, SYNC, set, models[c].end[1].slot, EPOLL_CTL_ADD, EPOLLIN, 0, 0);
        if (early)
            warm_up(c, some_rounds());
    }
    for (int turn = (int)between(&g, 2, 6); turn > 0; turn--) {
        int c = all[below(&g, (uint32_t)count)], slot = models[c].end[1].slot, waiter;
        settle(c);
        bool blocks = chance(&g, 60);
        int64_t length = some_length();
        if (!blocks)
            write_on(c, 0, length, SYNC, -1);
        if (nested && chance(&g, 60)) {
            waiter = emit(0, 1, OP_SETWAIT, blocks ? BLOCK : SYNC, outer, -1, (int)below(&g, 3), 0, 0, -1);
            shared->step[waiter].list[0] = set, shared->step[waiter].list[1] = EPOLLIN;
        } else {
            waiter = emit(0, 1, OP_POLL, blocks ? BLOCK : SYNC, set, -1, (int)below(&g, 4), POLLIN, 0, -1);
            shared->step[waiter].list[0] = POLLIN;
        }
        if (blocks)
            write_on(c, 0, length, SYNC, -1);
        join(waiter);
        waiter = emit(0, 0, OP_SETWAIT, SYNC, set, -1, (int)below(&g, 3), 0, 0, -1);
        shared->step[waiter].list[0] = slot, shared->step[waiter].list[1] = EPOLLIN;
        flush(c, 1);
        waiter = emit(0, 0, OP_POLL, SYNC, set, -1, (int)below(&g, 4), 0, 0, 0);
        shared->step[waiter].list[0] = POLLIN;
    }
}

static void kind_connect_again(void)
{
    int listener = begin(1);
    for (int times = (int)between(&g, 1, 2); times > 0; times--) {
        int c = new_connection(client(), listener, (int)below(&g, BY_EDGE), -1, -1);
        struct place *end = &models[c].end[0];
        for (int again = (int)between(&g, 1, 3); again > 0; again--) {
            flush(c, 0);
            if (models[c].flight[0] > 20000 || chance(&g, 70))
                flush(c, 1);
            step_on(c, 0, 0, OP_UNSPEC, SYNC, 0, 0);
            flush(c, 1);
            end_step(c, 1, SYNC), end_step(c, 1, SYNC);
            close_end(c, 1);
            models[c].live = false;
            int next = connections++;
            models[next] = models[c];
            models[next].live = true, models[next].end[1].set = -1, models[next].end[1].slot = new_slot();
            models[next].end[1].style = BLOCKING;
            is_open[0][models[next].end[1].slot] = true;
            end = &models[next].end[0];
            emit(end->process, 0, OP_CONNECT, SYNC, end->slot, end->set, listener, 2 * next, BY_POLL, 0);
            emit(0, 0, OP_ACCEPT, SYNC, listener_slot[listener], models[next].end[1].slot, 0, 2 * next + 1, 0, 0);
            c = next;
            warm_up(c, some_rounds());
            talk(c, 3);
        }
        mix(4);
    }
}

static void kind_passed(void)
{
    int listener = begin(1);
    int c = new_connection(1, listener, -1, -1, -1);
    int target = fork_from(0, 0, 0);
    for (int slot = 0; slot < SLOTS; slot++)
        close_slot(target, slot, 0);
    for (int times = (int)between(&g, 1, 3); times > 0; times--) {
        if (chance(&g, 50))
            write_on(c, (int)below(&g, 2), some_length(), SYNC, -1);
        struct place *end = &models[c].end[1];
        int from = end->process, to = from == 0 ? target : 0, slot = new_slot(), old = end->slot;
        emit(from, some_thread(from), OP_SENDFD, SYNC, end->slot, -1, 0, 0, 0, 0);
        if (chance(&g, 50)) {
            close_slot(from, old, -1);
            emit(to, 0, OP_RECVFD, SYNC, slot, -1, 0, 2 * c + 1, 0, 0);
        } else {
            emit(to, 0, OP_RECVFD, SYNC, slot, -1, 0, 2 * c + 1, 0, 0);
            if (chance(&g, 50)) { /* both hold it for a while */
                models[c].live = true;
                talk(c, 2);
            }
            close_slot(from, old, -1);
        }
        is_open[to][slot] = true;
        move_end(c, 1, to);
        end = &models[c].end[1];
        end->set = -1;
        end->slot = slot;
        warm_up(c, models[c].flight[0] + models[c].flight[1] ? 0 : some_rounds());
        talk(c, 3);
    }
    mix(5);
}

static void kind_executed(void)
{
    int listener = begin(1);
    int c = new_connection(1, listener, -1, -1, -1), side = 1;
    mix(4);
    if (chance(&g, 50)) { /* a child, as a shell starts it */
        int child = fork_from(0, 0, (int)below(&g, 3));
        close_slot(0, models[c].end[1].slot, 0);
        move_end(c, 1, child);
    }
    struct place *end = &models[c].end[side];
    if (chance(&g, 50))
        write_on(c, 0, some_length(), SYNC, -1);
    if (chance(&g, 50))
        write_on(c, 1, some_length(), SYNC, -1);
    int process = end->process;
    threads[process] = 1;
    int step = emit(process, 0, OP_EXEC, SYNC, -1, -1, (int)below(&g, 2), 0, 0, 0);
    shared->step[step].list[0] = end->slot;
    for (int slot = 0; slot < SLOTS; slot++)
        if (slot != end->slot)
            is_open[process][slot] = false;
    move_end(c, 1, process);
    end->set = -1;
    warm_up(c, models[c].flight[0] + models[c].flight[1] ? 0 : some_rounds());
    talk(c, 4);
}

static void kind_endings(void)
{
    int listener = begin(2);
    for (int times = (int)between(&g, 2, 5); times > 0 && has_room(); times--) {
        int c = new_connection(client(), listener, -1, -1, -1);
        mix((int)between(&g, 0, 4));
        finish(c, -1);
    }
    new_connection(1, listener, -1, -1, -1);
    mix(3);
    die(chance(&g, 50) ? 0 : 1);
}

/* Readers by edges that follow the rule of short counts, and writers by edges. */
static void kind_drained(void)
{
    int listener = begin(1), from = client(), set = new_slot(), count = (int)between(&g, 1, 3), all[3];
    uint32_t events = EPOLLIN | EPOLLET | (chance(&g, 50) ? EPOLLRDHUP : 0) | (chance(&g, 30) ? EPOLLOUT : 0);
    emit(0, 0, OP_SET, SYNC, set, -1, 1, 0, 0, 0);
    for (int at = 0; at < count; at++) {
        int rounds = some_rounds();
        int c = all[at] = new_connection(from, listener, (int)(chance(&g, 50) ? BY_EDGE : BLOCKING), BY_POLL, chance(&g, 50)
            ? rounds : 0);
        emit(0, 0, OP_CTL, SYNC, set, models[c].end[1].slot, EPOLL_CTL_ADD, (int)events, 0, 0);
    }
    for (int turn = (int)between(&g, 2, 8); turn > 0; turn--) {
        int c = all[below(&g, (uint32_t)count)];
        int64_t length = chance(&g, 50) ? between(&g, 1, 3000) : between(&g, 3000, 600000);
        int drain = emit(0, 0, OP_DRAIN, chance(&g, 50) ? BLOCK : FREE, set, -1, chance(&g, 70), (int)between(&g, 1000, 70000),
            0, length);
        shared->step[drain].list[0] = models[c].end[1].slot;
        int writer;
        if (models[c].end[0].style == BY_EDGE && chance(&g, 70)) {
            writer = step_on(c, 0, 0, OP_EDGEWRITE, FREE, chance(&g, 50), length);
            shared->step[writer].y = (int)between(&g, 1000, 100000);
        } else {
            writer = step_on(c, 0, 0, OP_W, FREE, ANY_TAME, length);
        }
        join(writer), join(drain);
        if (chance(&g, 30)) {
            /* The other direction, with the reader's thread in a plain wait. */
            write_on(c, 1, between(&g, 1, 5000), SYNC, -1);
            flush(c, 0);
        }
    }
    for (int at = 0; at < count; at++)
        emit(0, 0, OP_CTL, SYNC, set, models[all[at]].end[1].slot, EPOLL_CTL_DEL, 0, 0, 0);
    mix(4);
}

static void kind_duplex(void)
{
    int listener = begin(1);
    for (int process = 0; process < processes; process++)
        need_threads(process, 2);
    int count = (int)between(&g, 1, 3);
    for (int at = 0; at < count; at++)
        new_connection(client(), listener, (int)below(&g, BY_EDGE), (int)below(&g, BY_EDGE), -1);
    for (int times = (int)between(&g, 1, 4); times > 0; times--) {
        bulk(some_live(), between(&g, 10000, chance(&g, 20) ? 2500000 : 400000));
        mix(3);
    }
}

#define X(name) kind_##name,
static void (*const KIND_MAKERS[])(void) = {KINDS(X)};
#undef X

static void generate(uint64_t seed)
{
    shared->seed = seed, shared->kind = (uint32_t)(seed % KIND_COUNT), shared->steps = 0;
    shared->address = 0x7f000001 + (uint32_t)(seed % 200) * 256 + (uint32_t)(seed / 200 % 250);
    g.state = mixed_bits(seed + 77);
    memset(models, 0, sizeof models), memset(is_open, 0, sizeof is_open), memset(is_dead, 0, sizeof is_dead), memset(threads, 0,
        sizeof threads);
    connections = slots = processes = listeners = 0;
    KIND_MAKERS[shared->kind]();
    for (int c = 0; c < connections; c++)
        if (models[c].live && chance(&g, 80) && shared->steps < STEPS - 60)
            finish(c, -1);
    if (chance(&g, 30) && shared->steps < STEPS - 100)
        die(1);
}

#endif
