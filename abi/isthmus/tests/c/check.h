/* For the programs beside it: checks that say what was wrong. */
#ifndef CHECK_H
#define CHECK_H

#include <isthmus.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

/* A call that has to answer this. */
#define ANSWERS(expected, call) answers((expected), (call), #call, __FILE__, __LINE__)

/* A call that has to be refused for this reason. */
#define REFUSED(reason, call) ANSWERS(-(ISTH_REASON_##reason), call)

static inline void answers(int expected, int answer, const char *call, const char *file, int line)
{
    if (answer == expected)
        return;
    fprintf(stderr, "%s:%d: %s answers %d (%s) instead of %d (%s)\n", file, line, call, answer,
            isth_reason_name(answer), expected, isth_reason_name(expected));
    exit(1);
}

/* A call that must not fail. */
#define MUST(domain, call) must((domain), (call), #call, __FILE__, __LINE__)

static inline void must(const isth_domain *domain, int answer, const char *call, const char *file, int line)
{
    if (answer >= 0)
        return;
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, call, isth_last_error(domain));
    exit(1);
}

/* Bytes that tell where they belong. */
static inline void fill(unsigned char *bytes, size_t len, unsigned seed)
{
    for (size_t at = 0; at < len; at++)
        bytes[at] = (unsigned char)(at * 31 + (at >> 8) + seed);
}

static inline isth_domain *attach_as(const char *name)
{
    isth_options options;
    isth_domain *domain;
    ANSWERS(0, isth_options_init(&options));
    options.name = name;
    MUST(NULL, isth_attach(&options, &domain));
    return domain;
}

static inline void say(const char *text)
{
    puts(text);
    fflush(stdout);
}

/* Sent with this tag, a message ends an echo. */
#define STOP UINT64_MAX

/* Room for the longest message of these programs. */
#define ROOM ((size_t)5 << 20)

#endif
