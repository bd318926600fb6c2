/* A connection of which the daemon examines the socket, and does not answer. One program has both ends.
 *
 *   shown reader      prints `ready`, and goes on at a line; closes beside a thread that reads, prints `read`, and ends after a line
 *   shown child       as before; gives one end to a child, and closes it
 */
#include "sockets.h"
#include <spawn.h>
#include <stdatomic.h>
#include <sys/wait.h>

extern char **environ;

static int listener, port;
static atomic_int reader;

static void make_pair(int ends[2])
{
    ends[0] = connected("127.0.0.1", port);
    ends[1] = accepted(listener);
}

/* Exchanges enough for a stream. */
static void exchange(const int ends[2])
{
    static char bytes[4096];
    for (int at = 0; at < 20; at++)
        for (int from = 0; from < 2; from++) {
            write_all(ends[from], bytes, sizeof bytes);
            CHECK(read_all(ends[1 - from], bytes, sizeof bytes));
        }
}

static void await_line(void)
{
    char line[100];
    CHECK(fgets(line, sizeof line, stdin));
}

static void *receive(void *fd)
{
    static char bytes[100];
    atomic_store(&reader, gettid());
    return (void *)(intptr_t)recv((int)(intptr_t)fd, bytes, sizeof bytes, 0);
}

/* Waits until the reader sleeps in its call. */
static void await_reader(void)
{
    char path[64], state = 'R';
    int thread;
    while ((thread = atomic_load(&reader)) == 0)
        poll(NULL, 0, 1);
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    for (; state != 'S'; poll(NULL, 0, 1)) {
        FILE *file = fopen(path, "r");
        CHECK(file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1);
        fclose(file);
    }
}

static void close_beside_reader(const int ends[2])
{
    pthread_t thread;
    void *received;
    CHECK(pthread_create(&thread, NULL, receive, (void *)(intptr_t)ends[0]) == 0);
    await_reader();
    CHECK(close(ends[0]) == 0);
    write_all(ends[1], "a message", 9);
    CHECK(pthread_join(thread, &received) == 0);
    printf("received %ld\n", (long)(intptr_t)received);
}

static void give_to_child(const int ends[2])
{
    char *words[] = {"sh", "-c", "read line; echo got $line", NULL}, line[20] = "";
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = -1;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, ends[0], 0) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, ends[0], 1) == 0);
    CHECK(posix_spawn(&child, "/bin/sh", &actions, NULL, words, environ) == 0);
    CHECK(close(ends[0]) == 0);
    write_all(ends[1], "words\n", 6);
    CHECK(read_all(ends[1], line, 10));
    printf("%s", line);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int count, char **words)
{
    int ends[2];
    char byte;
    begin();
    CHECK(count == 2);
    struct sockaddr_in name = address_of("127.0.0.1", 0);
    socklen_t length = sizeof name;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&name, sizeof name) == 0 && listen(listener, 4) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&name, &length) == 0);
    port = ntohs(name.sin_port);
    make_pair(ends); /* The library connects to the daemon. */
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    printf("ready\n");
    await_line();
    make_pair(ends);
    exchange(ends);
    (strcmp(words[1], "reader") == 0 ? close_beside_reader : give_to_child)(ends);
    await_line();
    printf("end %zd\n", read(ends[1], &byte, 1));
    return 0;
}
