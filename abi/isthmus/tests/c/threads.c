/*
 * One domain in three threads: two wait for ever, the third posts, and now and then takes a completion out of
 * their hands, or the notifications they sleep for. A wake-up that gets lost makes this program hang.
 */
#include "check.h"
#include <pthread.h>

#define ROUNDS 2000

static isth_domain *domain;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int over;

static char stop;

static void count(const isth_completion *done)
{
    CHECK(done->kind == ISTH_SENT || done->kind == ISTH_RECEIVED);
    pthread_mutex_lock(&lock);
    over++;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

static void *wait_for_ever(void *unused)
{
    isth_completion done;
    (void)unused;
    for (;;) {
        ANSWERS(1, isth_wait(domain, &done, -1));
        if (done.context == &stop && done.kind == ISTH_RECEIVED)
            return NULL;
        if (done.context != &stop)
            count(&done);
    }
}

int main(int argc, char **argv)
{
    isth_address to = {0, 0}, own = {0, 1};
    pthread_t waiting[2];
    isth_completion done;
    uint32_t at;
    char in[8];

    CHECK(argc == 2);
    domain = attach_as(NULL);
    MUST(domain, isth_domain_id(domain, &own.domain));
    MUST(domain, isth_lookup(domain, argv[1], &to.domain));
    MUST(domain, isth_open(domain, 0, NULL, &at));
    MUST(domain, isth_open(domain, 1, NULL, &at));
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&waiting[i], NULL, wait_for_ever, NULL) == 0);
    for (int i = 0; i < ROUNDS; i++) {
        MUST(domain, isth_receive(domain, 0, in, sizeof in, NULL, NULL));
        MUST(domain, isth_send(domain, 0, to, (uint64_t)i, "thread", 7, NULL, NULL));
        if (i % 3 == 1 && isth_poll(domain, &done) == 1)
            count(&done);
        if (i % 100 == 2)
            MUST(domain, isth_lookup(domain, argv[1], &to.domain));
        pthread_mutex_lock(&lock);
        while (over < 2 * (i + 1))
            pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
    }
    for (int i = 0; i < 2; i++)
        MUST(domain, isth_receive(domain, 1, NULL, 0, &stop, NULL));
    for (int i = 0; i < 2; i++)
        MUST(domain, isth_send(domain, 1, own, 0, NULL, 0, &stop, NULL));
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(waiting[i], NULL) == 0);
    MUST(domain, isth_send(domain, 0, to, STOP, NULL, 0, NULL, NULL));
    ANSWERS(0, isth_detach(domain, 5000));
    say("joined");
    return 0;
}
