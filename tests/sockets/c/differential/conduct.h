/* Runs a program: starts its processes and gives them their steps. */
#ifndef DIFFERENTIAL_CONDUCT_H
#define DIFFERENTIAL_CONDUCT_H

#include "perform.h"

static uint64_t end_of_time;
static pid_t group;

static int read_file(const char *path, char *to, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t got = read(fd, to, size - 1);
    close(fd);
    to[got < 0 ? 0 : got] = 0;
    return got > 0 ? 0 : -1;
}

/* The state of a thread: 'S' if it sleeps, 'Z' after its end, 0 if there is none. */
static char state_of(int pid, int tid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, tid);
    if (read_file(path, text, sizeof text) != 0)
        return 0;
    char *name_end = strrchr(text, ')');
    return name_end ? name_end[2] : 0;
}

/* Whether all threads of a process have ended. */
static bool has_ended(int pid)
{
    char state = state_of(pid, pid);
    if (state != 0 && state != 'Z' && state != 'X')
        return false;
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    if (read_file(path, text, sizeof text) != 0)
        return true;
    char *count = strstr(text, "\nThreads:");
    return !count || atoi(count + 9) <= 1;
}

static bool failed(enum verdict verdict, uint32_t at)
{
    shared->verdict = verdict, shared->at = at;
    return false;
}

/* Sleeps until something completes, for a short time. */
static void wait_for_completion(uint32_t seen)
{
    struct timespec time = {0, 20000000};
    if (shared->completions == seen)
        futex(&shared->completions, FUTEX_WAIT, seen, &time);
}

static bool wait_for_result(uint32_t at)
{
    const struct step *step = &shared->step[at];
    const struct actor *actor = &shared->actors[step->process][step->thread];
    for (;;) {
        uint32_t seen = shared->completions;
        if (shared->result[at].state == 2)
            return true;
        if (now_us() > end_of_time)
            return failed(HUNG, at);
        uint64_t begin = now_us();
        wait_for_completion(seen);
        if (now_us() - begin > 15000 && actor->pid && has_ended(actor->pid) && shared->result[at].state != 2)
            return failed(DIED, at);
    }
}

/* Waits until the thread sleeps in its step, or has completed it. */
static bool wait_until_blocked(uint32_t at)
{
    const struct step *step = &shared->step[at];
    const struct actor *actor = &shared->actors[step->process][step->thread];
    uint64_t begin = now_us();
    for (int asleep = 0; asleep < 3 && now_us() - begin < 500000;) {
        if (shared->result[at].state == 2)
            return true;
        if (now_us() > end_of_time)
            return failed(HUNG, at);
        asleep = shared->result[at].state == 1 && state_of(actor->pid, actor->tid) == 'S' ? asleep + 1 : 0;
        nap(30);
    }
    return true;
}

static bool wait_until_ended(uint32_t at, int pid)
{
    while (!has_ended(pid)) {
        if (now_us() > end_of_time)
            return failed(HUNG, at);
        nap(100);
    }
    return true;
}

static bool wait_until_ready(uint32_t at, const struct actor *actor)
{
    for (;;) {
        uint32_t seen = shared->completions;
        if (actor->tid)
            return true;
        if (now_us() > end_of_time)
            return failed(HUNG, at);
        wait_for_completion(seen);
    }
}

/* Sends the signal until its handler has run; if `ends`, until the step has ended. */
static bool signal_step(uint32_t at)
{
    const struct step *step = &shared->step[at];
    const struct actor *actor = &shared->actors[step->process][step->thread];
    for (;;) {
        uint32_t seen = shared->completions, handled = shared->handled;
        if (syscall(SYS_tgkill, actor->pid, actor->tid, SIGUSR1) != 0)
            return failed(DIED, at);
        uint64_t begin = now_us();
        while (now_us() - begin < 20000 && (shared->handled == handled || (step->y && shared->result[step->x].state != 2))) {
            if (shared->handled == handled)
                nap(50);
            else
                wait_for_completion(seen);
            seen = shared->completions;
        }
        if (now_us() > end_of_time)
            return failed(HUNG, (uint32_t)step->x);
        if (step->y ? shared->result[step->x].state == 2 : shared->handled != handled)
            return true;
    }
}

static bool conduct_step(uint32_t at)
{
    struct step *step = &shared->step[at];
    struct actor *actor = &shared->actors[step->process][step->thread];
    struct result *result = &shared->result[at];
    switch (step->op) {
    case OP_JOIN:
        result->state = 2;
        return wait_for_result((uint32_t)step->x);
    case OP_SIGNAL:
        result->state = 2;
        return signal_step(at);
    case OP_KILL:
        result->state = 2;
        /* Before its process has begun, the number is 0, which would be the conductor's own group. */
        if (!wait_until_ready(at, actor) || actor->pid <= 1)
            return failed(HUNG, at);
        kill(actor->pid, SIGKILL);
        return wait_until_ended(at, actor->pid);
    default:
        break;
    }
    if (!wait_until_ready(at, actor))
        return false;
    int pid = actor->pid;
    if (step->op == OP_THREAD)
        shared->actors[step->process][step->x].tid = 0;
    actor->step = at;
    if (step->op == OP_EXEC)
        actor->tid = 0;
    actor->command++;
    futex(&actor->command, FUTEX_WAKE, 10, NULL);
    if (step->op == OP_EXEC) {
        /* The step has no result: its thread begins again. */
        bool ready = wait_until_ready(at, actor);
        result->state = 2;
        return ready;
    }
    switch (step->mode) {
    case SYNC:
        return wait_for_result(at);
    case BLOCK:
        return wait_until_blocked(at);
    case DIES:
        if (!wait_until_ended(at, pid))
            return false;
        result->state = 2;
        return true;
    default:
        return true;
    }
}

static pid_t start_process(unsigned number)
{
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        exit(2);
    }
    if (child == 0) {
        setpgid(0, group);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        own_process = number;
        begin_actor();
        _exit(0);
    }
    setpgid(child, group ? group : child);
    if (!group)
        group = child;
    return child;
}

/* Generates and runs the program of a seed. */
static void run_program(uint64_t seed)
{
    generate(seed);
    memset(shared->result, 0, sizeof shared->result[0] * shared->steps);
    memset(shared->actors, 0, sizeof shared->actors);
    memset(shared->fd, -1, sizeof shared->fd), memset(shared->end, -1, sizeof shared->end);
    memset((void *)shared->written, 0, sizeof shared->written), memset((void *)shared->taken, 0, sizeof shared->taken);
    memset((void *)shared->counters, 0, sizeof shared->counters);
    shared->verdict = RAN, shared->at = 0;
    shared->bytes = 0;
    shared->handled = 0;
    end_of_time = now_us() + (uint64_t)shared->deadline * 1000;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        abort();
    dup2(pair[0], FD_PASS_IN), dup2(pair[1], FD_PASS_OUT);
    close(pair[0]), close(pair[1]);
    group = 0;
    for (unsigned number = 0; number < shared->initial; number++)
        start_process(number);
    for (uint32_t at = 0; at < shared->steps && conduct_step(at); at++)
        ;
    if (group <= 1)
        abort();
    kill(-group, SIGKILL);
    for (;;) {
        pid_t ended = waitpid(-1, NULL, WNOHANG);
        if (ended < 0 && errno == ECHILD)
            break;
        if (ended <= 0)
            nap(100), kill(-group, SIGKILL);
    }
}

/* Runs the seeds that come through descriptor 0, one after another, and answers each on descriptor 1. */
static int runner(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, FD_MEMORY, 0);
    if (shared == MAP_FAILED)
        return 1;
    /* Actors use the numbers 0 and 1: the pipes go elsewhere. */
    int in = fcntl(0, F_DUPFD_CLOEXEC, 910), out = fcntl(1, F_DUPFD_CLOEXEC, 911), null = open("/dev/null", O_RDWR);
    dup2(null, 0), dup2(null, 1);
    close(null);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (uint64_t seed; read(in, &seed, sizeof seed) == sizeof seed;) {
        run_program(seed);
        char done = 'd';
        if (write(out, &done, 1) != 1)
            break;
    }
    return 0;
}

#endif
