/* Random programs of several processes and threads, on plain TCP and with the library: a program must not notice the difference.
 *
 *   differential run [--first SEED] [--count N] [OPTIONS]   prints each seed that fails, and a summary
 *   differential one SEED [OPTIONS]                         runs a seed, and prints its steps with both results
 *   differential show SEED                                  prints the steps of a seed
 *
 *   --library PATH   the library; without it, the program runs on plain TCP again
 *   --env NAME=VALUE for the program with the library
 *   --deadline MS    of a program (10000)
 *   --jobs N         seeds that run beside each other (2)
 *   --kind NAME      only seeds of this kind
 *   --isthmus PATH   asks the daemon for its count of streams
 *   --fail-masked    differences between two runs on plain TCP are failures, too
 *
 *   program.h   steps and results, in memory that all processes of a run share
 *   generate.h  seed -> steps, by a model of connections
 *   perform.h   what each step does; transfer.h: calls that move bytes, each checked against its position
 *   conduct.h   gives the steps to the threads of the program, one at a time, or several in blocks that run freely
 *   this file   the supervisor: sends seeds to runners without and with the library, and compares what they wrote
 *
 * What a step may do in two ways on plain TCP is masked: the program runs on plain TCP several times before a difference counts.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "differential/program.h"
#include "differential/transfer.h"
#include "differential/perform.h"
#include "differential/generate.h"
#include "differential/conduct.h"

enum { JOBS = 16, VARIABLES = 16, PLAIN_RUNS = 4 };

static const char *library, *variables[VARIABLES], *isthmus;
static int variable_count, only_kind = -1;
static uint32_t deadline = 10000, jobs = 2;
static bool fail_masked;
static uint64_t first, count = 300;

struct totals {
    _Atomic uint64_t seeds, failed, masked, bytes, by_kind[KIND_COUNT], failed_by_kind[KIND_COUNT];
    _Atomic uint64_t next;
};
static struct totals *totals;

struct runner {
    int to, from;
    pid_t pid;
    struct memory *memory;
};

static struct runner start_runner(bool with_library)
{
    struct runner runner;
    int in[2], out[2], memory = memfd_create("differential", MFD_CLOEXEC);
    if (memory < 0 || ftruncate(memory, sizeof(struct memory)) != 0 || pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
        perror("differential");
        exit(2);
    }
    runner.memory = mmap(NULL, sizeof(struct memory), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    runner.memory->deadline = deadline;
    runner.to = in[1], runner.from = out[0];
    runner.pid = fork();
    if (runner.pid == 0) {
        dup2(in[0], 0), dup2(out[1], 1), dup2(memory, FD_MEMORY);
        unsetenv("LD_PRELOAD");
        if (with_library) {
            setenv("LD_PRELOAD", library, 1);
            for (int index = 0; index < variable_count; index++)
                putenv((char *)variables[index]);
        }
        execl(own_path(), "differential", "runner", NULL);
        _exit(127);
    }
    close(in[0]), close(out[1]), close(memory);
    return runner;
}

static void run_on(struct runner *runner, uint64_t seed)
{
    char done;
    runner->memory->deadline = deadline;
    if (write(runner->to, &seed, sizeof seed) != sizeof seed || read(runner->from, &done, 1) != 1) {
        printf("seed %llu: the runner has ended\n", (unsigned long long)seed);
        exit(2);
    }
}

/* The results of one run. */
struct run {
    enum verdict verdict;
    uint32_t at;
    struct result result[STEPS];
};

static void take(struct run *run, const struct memory *memory)
{
    run->verdict = (enum verdict)memory->verdict, run->at = memory->at;
    memcpy(run->result, memory->result, sizeof run->result[0] * memory->steps);
}

static bool same(const struct result *one, const struct result *other)
{
    return one->state == other->state && (one->state != 2 || (one->value == other->value && one->error == other->error &&
        strcmp(one->note, other->note) == 0));
}

static void print_step(const struct memory *memory, uint32_t at)
{
    const struct step *step = &memory->step[at];
    printf("%3u p%u.%u %-5s %-9s", at, step->process, step->thread, step->mode == SYNC ? "" : step->mode == FREE ? "free"
        : step->mode == BLOCK ? "block" : "dies", OPERATION_NAMES[step->op]);
    if (step->slot >= 0)
        printf(" slot %d", step->slot);
    if (step->other >= 0)
        printf(" other %d", step->other);
    printf(" x %d y %#x z %d n %lld", step->x, (unsigned)step->y, step->z, (long long)step->n);
    if (step->list[0] >= 0)
        printf(" list");
    for (int index = 0; index < LIST && step->list[index] >= 0; index++)
        printf(" %#x", (unsigned)step->list[index]);
}

static void print_result(const struct result *result)
{
    if (result->state != 2)
        printf("%s", result->state ? "under way" : "not begun");
    else if (result->error)
        printf("%lld %s%s", (long long)result->value, strerrorname_np(result->error) ? strerrorname_np(result->error) : "?",
            result->note);
    else
        printf("%lld%s", (long long)result->value, result->note);
}

static void print_both(const struct memory *memory, const struct run *plain, const struct run *other, bool all)
{
    for (uint32_t at = 0; at < memory->steps; at++) {
        bool differs = !same(&plain->result[at], &other->result[at]);
        if (!all && !differs && plain->result[at].state == 0)
            continue;
        printf("%s ", differs ? "*" : " ");
        print_step(memory, at);
        if (memory->step[at].op != OP_JOIN) {
            printf("  -> ");
            print_result(&plain->result[at]);
        }
        if (differs) {
            printf("  | library: ");
            print_result(&other->result[at]);
        }
        printf("\n");
    }
}

static const char *word_of(enum verdict verdict)
{
    return verdict == HUNG ? "hang" : verdict == DIED ? "death" : "end";
}

struct comparison {
    struct run plain[PLAIN_RUNS], library;
    bool masked[STEPS];
    uint32_t masks;
};

static bool is_known(const struct comparison *all, int runs, uint32_t at)
{
    for (int run = 0; run < runs; run++)
        if (same(&all->plain[run].result[at], &all->library.result[at]))
            return true;
    return all->masked[at];
}

/* The first step that differs; -1 if none. Bytes that are wrong are never masked. */
static int first_difference(const struct comparison *all, int runs, uint32_t steps)
{
    for (uint32_t at = 0; at < steps; at++)
        if (!is_known(all, runs, at) || strstr(all->library.result[at].note, "BAD"))
            return (int)at;
    return -1;
}

/* Runs a seed on both. Returns whether it fails, with the reason in `reason`. */
static bool fails(struct runner *plain, struct runner *other, uint64_t seed, struct comparison *all, char *reason, size_t size)
{
    const struct memory *memory = plain->memory;
    memset(all->masked, 0, sizeof all->masked);
    all->masks = 0;
    run_on(plain, seed);
    take(&all->plain[0], memory);
    if (all->plain[0].verdict != RAN) {
        uint32_t at = all->plain[0].at;
        const struct step *step = &memory->step[at];
        snprintf(reason, size, "PLAIN: %s at step %u in thread %u of process %u (%s)", word_of(all->plain[0].verdict), at,
            step->thread, step->process, OPERATION_NAMES[step->op]);
        all->library = all->plain[0];
        return true;
    }
    run_on(other, seed);
    take(&all->library, other->memory);
    totals->bytes += other->memory->bytes;
    uint32_t steps = memory->steps;
    if (all->library.verdict != RAN) {
        struct run once = all->library;
        run_on(other, seed);
        take(&all->library, other->memory);
        bool again = all->library.verdict != RAN;
        if (!again)
            all->library = once;
        uint32_t at = all->library.at;
        const struct step *step = &memory->step[at];
        snprintf(reason, size, "%s at step %u in thread %u of process %u (%s)%s", word_of(all->library.verdict), at,
            step->thread, step->process, OPERATION_NAMES[step->op], again ? "" : ", once of two runs");
        return true;
    }
    int runs = 1, at = first_difference(all, runs, steps);
    if (at < 0)
        return false;
    for (; runs < PLAIN_RUNS && at >= 0; at = first_difference(all, runs, steps)) {
        run_on(plain, seed);
        take(&all->plain[runs], memory);
        for (uint32_t step = 0; step < steps; step++)
            if (!same(&all->plain[0].result[step], &all->plain[runs].result[step]) && !all->masked[step])
                all->masked[step] = true, all->masks++;
        runs++;
    }
    totals->masked += all->masks;
    if (at < 0 && !(fail_masked && all->masks))
        return false;
    if (at < 0) {
        for (at = 0; !all->masked[at]; at++)
            ;
        snprintf(reason, size, "PLAIN: step %d (%s) has more than one result", at, OPERATION_NAMES[memory->step[at].op]);
        return true;
    }
    struct run kept = all->library;
    run_on(other, seed);
    take(&all->library, other->memory);
    bool again = all->library.verdict != RAN || first_difference(all, runs, steps) >= 0;
    all->library = kept;
    snprintf(reason, size, "step %d (%s) differs%s", at, OPERATION_NAMES[memory->step[at].op], again ? "" : ", once of two runs");
    return true;
}

static void work(void)
{
    struct runner plain = start_runner(false), other = start_runner(library != NULL);
    struct comparison *all = malloc(sizeof *all);
    for (;;) {
        uint64_t number = totals->next++;
        uint64_t seed = first + (only_kind >= 0 ? number * KIND_COUNT : number);
        if (number >= count)
            break;
        if (only_kind >= 0)
            seed = seed / KIND_COUNT * KIND_COUNT + (uint64_t)only_kind;
        char reason[200];
        unsigned kind = (unsigned)(seed % KIND_COUNT);
        totals->seeds++;
        totals->by_kind[kind]++;
        if (fails(&plain, &other, seed, all, reason, sizeof reason)) {
            totals->failed++;
            totals->failed_by_kind[kind]++;
            static char text[1 << 17];
            setvbuf(stdout, text, _IOFBF, sizeof text);
            printf("seed %llu (%s): %s\n", (unsigned long long)seed, KIND_NAMES[kind], reason);
            int shown = 0;
            for (uint32_t at = 0; at < plain.memory->steps && shown < 3; at++)
                if (!same(&all->plain[0].result[at], &all->library.result[at]) && !all->masked[at] &&
                    plain.memory->step[at].op != OP_JOIN) {
                    printf("  ");
                    print_step(plain.memory, at);
                    printf("\n        TCP: ");
                    print_result(&all->plain[0].result[at]);
                    printf("; library: ");
                    print_result(&all->library.result[at]);
                    printf("\n");
                    shown++;
                }
            fflush(stdout);
        }
    }
    close(plain.to), close(other.to);
    waitpid(plain.pid, NULL, 0), waitpid(other.pid, NULL, 0);
    exit(0);
}

/* The number behind "paired" in the daemon's report; -1 if there is none. */
static long long paired(void)
{
    char command[PATH_MAX], text[65536];
    if (!isthmus)
        return -1;
    snprintf(command, sizeof command, "%s stream list --json", isthmus);
    FILE *report = popen(command, "r");
    size_t length = report ? fread(text, 1, sizeof text - 1, report) : 0;
    text[length] = 0;
    if (report)
        pclose(report);
    char *found = strstr(text, "\"paired\"");
    return found ? atoll(found + 9 + strspn(found + 9, ": ")) : -1;
}

static int run(void)
{
    long long before = paired();
    uint64_t begin = now_us();
    totals->next = 0;
    for (uint32_t job = 0; job < jobs; job++)
        if (fork() == 0)
            work();
    int status, bad = 0;
    while (wait(&status) > 0)
        bad |= status;
    for (int kind = 0; kind < KIND_COUNT; kind++)
        if (totals->failed_by_kind[kind])
            printf("%s: %llu of %llu failed\n", KIND_NAMES[kind], (unsigned long long)totals->failed_by_kind[kind],
                (unsigned long long)totals->by_kind[kind]);
    double seconds = (double)(now_us() - begin) / 1e6;
    printf("%llu seeds, %llu failed, ", (unsigned long long)totals->seeds, (unsigned long long)totals->failed);
    if (isthmus)
        printf("%lld streams, ", paired() - before);
    printf("%llu MiB, %llu steps masked, %.0f seeds a second\n", (unsigned long long)(totals->bytes >> 20),
        (unsigned long long)totals->masked, (double)totals->seeds / seconds);
    return totals->failed || bad ? 1 : 0;
}

static int one(uint64_t seed)
{
    struct runner plain = start_runner(false), other = start_runner(library != NULL);
    struct comparison *all = malloc(sizeof *all);
    char reason[200];
    bool bad = fails(&plain, &other, seed, all, reason, sizeof reason);
    print_both(plain.memory, &all->plain[0], &all->library, true);
    printf("seed %llu (%s): %s\n", (unsigned long long)seed, KIND_NAMES[seed % KIND_COUNT], bad ? reason : "the same");
    return bad;
}

static int show(uint64_t seed)
{
    generate(seed);
    for (uint32_t at = 0; at < shared->steps; at++) {
        print_step(shared, at);
        printf("\n");
    }
    printf("seed %llu (%s): %u processes at the beginning, %u steps\n", (unsigned long long)seed, KIND_NAMES[shared->kind],
        shared->initial, shared->steps);
    return 0;
}

static int kind_of(const char *name)
{
    for (int kind = 0; kind < KIND_COUNT; kind++)
        if (strcmp(KIND_NAMES[kind], name) == 0)
            return kind;
    fprintf(stderr, "no kind %s\n", name);
    exit(2);
}

int main(int argc, char **argv)
{
    make_alphabet();
    if (argc >= 3 && strcmp(argv[1], "actor") == 0)
        return actor_after_exec((unsigned)atoi(argv[2]));
    if (argc >= 2 && strcmp(argv[1], "runner") == 0)
        return runner();
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    totals = mmap(NULL, sizeof *totals, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const char *command = argc >= 2 ? argv[1] : "";
    int at = 2;
    uint64_t seed = 0;
    if ((strcmp(command, "one") == 0 || strcmp(command, "show") == 0) && argc >= 3)
        seed = strtoull(argv[at++], NULL, 10);
    for (; at + 1 < argc || (at < argc && strcmp(argv[at], "--fail-masked") == 0); at++) {
        if (strcmp(argv[at], "--fail-masked") == 0) {
            fail_masked = true;
            continue;
        }
        const char *name = argv[at++], *value = argv[at];
        if (strcmp(name, "--first") == 0)
            first = strtoull(value, NULL, 10);
        else if (strcmp(name, "--count") == 0)
            count = strtoull(value, NULL, 10);
        else if (strcmp(name, "--library") == 0)
            library = value;
        else if (strcmp(name, "--env") == 0 && variable_count < VARIABLES)
            variables[variable_count++] = value;
        else if (strcmp(name, "--deadline") == 0)
            deadline = (uint32_t)atoi(value);
        else if (strcmp(name, "--jobs") == 0)
            jobs = (uint32_t)atoi(value);
        else if (strcmp(name, "--kind") == 0)
            only_kind = kind_of(value);
        else if (strcmp(name, "--isthmus") == 0)
            isthmus = value;
        else
            command = "";
    }
    if (strcmp(command, "run") == 0)
        return run();
    if (strcmp(command, "one") == 0)
        return one(seed);
    if (strcmp(command, "show") == 0)
        return show(seed);
    fprintf(stderr, "see the head of differential.c\n");
    return 2;
}
