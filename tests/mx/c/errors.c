/* Error handlers, and what is an error. */
#include "mxtest.h"

static int calls;
static mx_return_t last_code;
static char last_text[256];

static mx_return_t counting(char *message, mx_return_t code)
{
    CHECK(message != NULL);
    calls++;
    last_code = code;
    snprintf(last_text, sizeof last_text, "%s", message);
    return code;
}

/* Its answer is what the caller gets. */
static mx_return_t translating(char *message, mx_return_t code)
{
    counting(message, code);
    return MX_BAD_BAD_BAD;
}

/* How a child ended that did this, and what it wrote to standard error. */
struct ending {
    int status;
    char text[1024];
};

static struct ending child_that(void (*does)(void))
{
    struct ending ending = {0, ""};
    size_t have = 0;
    ssize_t more;
    int fds[2];
    pid_t child;
    CHECK(pipe(fds) == 0);
    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(PATIENCE);
        dup2(fds[1], 2);
        close(fds[0]);
        close(fds[1]);
        does();
        _exit(42);
    }
    close(fds[1]);
    while ((more = read(fds[0], ending.text + have, sizeof ending.text - 1 - have)) > 0)
        have += (size_t)more;
    close(fds[0]);
    CHECK(waitpid(child, &ending.status, 0) == child);
    return ending;
}

static void exits(void (*does)(void))
{
    struct ending ending = child_that(does);
    CHECK(WIFEXITED(ending.status));
    EQUAL(255, WEXITSTATUS(ending.status)); /* exit(-1) */
    CHECK(strstr(ending.text, ": ") != NULL); /* "message: text" */
}

static void survives(void (*does)(void))
{
    struct ending ending = child_that(does);
    if (ending.status != 42 << 8)
        fputs(ending.text, stderr);
    EQUAL(42 << 8, ending.status);
}

static void init_and_init_again(void)
{
    if (mx_init() != MX_SUCCESS)
        _exit(1);
    if (mx_init() != MX_ALREADY_INITIALIZED)
        _exit(2);
}

static void wrong_before_init(void)
{
    mx_progress(NULL);
}

static void a_board_that_is_not_there(void)
{
    mx_endpoint_t endpoint;
    if (mx_init() != MX_SUCCESS)
        _exit(1);
    if (mx_open_endpoint(99, 0, KEY, NULL, 0, &endpoint) != MX_BOARD_UNKNOWN)
        _exit(2);
}

static void asks_for_fatal_ones(void)
{
    mx_set_error_handler(MX_ERRORS_RETURN);
    OK(mx_init());
    GIVES(MX_ALREADY_INITIALIZED, mx_init());
    mx_set_error_handler(MX_ERRORS_ARE_FATAL);
    mx_init();
}

static void fatal_by_default(void)
{
    unsetenv("MX_ERRORS_ARE_FATAL");
    exits(init_and_init_again);
    exits(wrong_before_init);
    exits(a_board_that_is_not_there);
    exits(asks_for_fatal_ones);
    setenv("MX_ERRORS_ARE_FATAL", "1", 1);
    exits(init_and_init_again);
}

static void variable_makes_them_return(void)
{
    setenv("MX_ERRORS_ARE_FATAL", "0", 1);
    survives(init_and_init_again);
    survives(a_board_that_is_not_there);
    setenv("MX_ERRORS_ARE_FATAL", "words count as nothing", 1); /* as atoi has it */
    survives(init_and_init_again);
}

static void omx_name_wins(void)
{
    setenv("MX_ERRORS_ARE_FATAL", "1", 1);
    setenv("OMX_FATAL_ERRORS", "0", 1);
    survives(init_and_init_again);
    setenv("MX_ERRORS_ARE_FATAL", "0", 1);
    setenv("OMX_FATAL_ERRORS", "1", 1);
    exits(init_and_init_again);
    unsetenv("OMX_FATAL_ERRORS");
    setenv("OMX_IGNORE_MX_ENV", "1", 1);
    exits(init_and_init_again);
}

/* A self-send that does not fit: the receive ends truncated. */
static void truncates(void)
{
    static unsigned char bytes[100];
    mx_endpoint_t endpoint;
    mx_status_t status;
    mx_request_t receiving;
    uint32_t done;
    mx_segment_t segment = {bytes, 10};
    if (mx_init() != MX_SUCCESS)
        _exit(1);
    endpoint = open_any();
    OK(mx_irecv(endpoint, &segment, 1, 1, MX_MATCH_MASK_NONE, NULL, &receiving));
    give(endpoint, own_address(endpoint), 1, bytes, sizeof bytes);
    OK(mx_wait(endpoint, &receiving, MX_INFINITE, &status, &done));
    ENDED(MX_STATUS_TRUNCATED, status);
}

static void fatal_at_completion(void)
{
    unsetenv("MX_ERRORS_ARE_FATAL");
    exits(truncates);
    setenv("MX_ERRORS_ARE_FATAL", "0", 1);
    survives(truncates);
}

static void previous_handler_returned(void)
{
    CHECK(mx_set_error_handler(counting) == MX_ERRORS_ARE_FATAL);
    CHECK(mx_set_error_handler(MX_ERRORS_RETURN) == counting);
    CHECK(mx_set_error_handler(translating) == MX_ERRORS_RETURN);
    OK(mx_init());
    CHECK(mx_set_error_handler(counting) == translating); /* mx_init left it alone */
    OK(mx_finalize());
}

static void answer_of_the_handler(void)
{
    mx_endpoint_t endpoint;
    mx_set_error_handler(translating);
    OK(mx_init());
    EQUAL(0, calls);
    GIVES(MX_BAD_BAD_BAD, mx_open_endpoint(99, 0, KEY, NULL, 0, &endpoint));
    EQUAL(1, calls);
    EQUAL(MX_BOARD_UNKNOWN, last_code);
    CHECK(last_text[0] != '\0');
    GIVES(MX_BAD_BAD_BAD, mx_init());
    EQUAL(2, calls);
    EQUAL(MX_ALREADY_INITIALIZED, last_code);
    OK(mx_finalize());
}

static int own_calls;

static mx_return_t of_the_endpoint(char *message, mx_return_t code)
{
    CHECK(message != NULL);
    own_calls++;
    return code;
}

static void endpoint_handler_first(void)
{
    mx_param_t param;
    mx_endpoint_t special, ordinary;
    mx_status_t status;
    uint32_t result;

    memset(&param, 0, sizeof param);
    param.key = MX_PARAM_ERROR_HANDLER;
    param.val.error_handler = of_the_endpoint;
    mx_set_error_handler(counting);
    OK(mx_init());
    OK(mx_open_endpoint(0, MX_ANY_ENDPOINT, KEY, &param, 1, &special));
    ordinary = open_any();
    GIVES(MX_BAD_MATCH_MASK, mx_test_any(special, 1, 0, &status, &result));
    EQUAL(1, own_calls);
    EQUAL(0, calls);
    GIVES(MX_BAD_MATCH_MASK, mx_test_any(ordinary, 1, 0, &status, &result));
    EQUAL(1, own_calls);
    EQUAL(1, calls);
    mx_set_error_handler(MX_ERRORS_ARE_FATAL); /* of the process, not of the endpoint */
    GIVES(MX_BAD_MATCH_MASK, mx_test_any(special, 1, 0, &status, &result));
    EQUAL(2, own_calls);
    mx_set_error_handler(counting);
    OK(mx_close_endpoint(special));
    end(ordinary);
}

static void once_for_each(void)
{
    mx_endpoint_t endpoint;
    mx_endpoint_addr_t address;
    static mx_segment_t segments[257];
    mx_request_t request = NULL;
    uint64_t nic;
    uint32_t board;
    char name[MX_MAX_HOSTNAME_LEN] = "absent:7";

    mx_set_error_handler(counting);
    OK(mx_init());
    endpoint = open_any();
    GIVES(MX_NIC_NOT_FOUND, mx_connect(endpoint, 0x123456789abc, 0, KEY, 1000, &address));
    EQUAL(1, calls);
    GIVES(MX_CONNECTION_FAILED, mx_connect(endpoint, place_of(endpoint).nic, 9, KEY, 1000, &address));
    EQUAL(2, calls);
    GIVES(MX_BAD_SEG_CNT, mx_irecv(endpoint, segments, 257, 0, 0, NULL, &request));
    EQUAL(3, calls);
    GIVES(MX_HOST_NOT_FOUND, mx_hostname_to_nic_id(name, &nic));
    EQUAL(4, calls);
    GIVES(MX_BOARD_UNKNOWN, mx_nic_id_to_board_number(0x123456789abc, &board));
    EQUAL(5, calls);
    end(endpoint);
    EQUAL(5, calls);
}

/* A completion with an error calls the handler too, once for each; the call that shows it succeeds. */
static void completion_calls_it(void)
{
    static unsigned char bytes[100];
    mx_endpoint_t endpoint;
    mx_request_t receiving;
    mx_set_error_handler(counting);
    OK(mx_init());
    endpoint = open_any();
    receiving = post(endpoint, 1, bytes, 10);
    give(endpoint, own_address(endpoint), 1, bytes, sizeof bytes);
    ENDED(MX_STATUS_TRUNCATED, finish(endpoint, receiving));
    CHECK(calls == 1 || calls == 2); /* the receive; the send, which moved too little, may count as well */
    end(endpoint);
}

static void not_yet_is_no_error(void)
{
    mx_endpoint_t endpoint;
    mx_request_t receiving, peeked;
    mx_status_t status;
    uint32_t result = 2;
    static unsigned char bytes[8];

    mx_set_error_handler(counting);
    OK(mx_init());
    endpoint = open_any();
    receiving = post(endpoint, 1, bytes, sizeof bytes);
    still_pending(endpoint, receiving);
    nothing_done(endpoint);
    OK(mx_wait(endpoint, &receiving, 1, &status, &result));
    EQUAL(0, result);
    OK(mx_wait_any(endpoint, 1, 0, 0, &status, &result));
    EQUAL(0, result);
    OK(mx_peek(endpoint, 1, &peeked, &result));
    EQUAL(0, result);
    OK(mx_probe(endpoint, 1, 0, 0, &status, &result));
    EQUAL(0, result);
    OK(mx_cancel(endpoint, &receiving, &result));
    EQUAL(1, result);
    EQUAL(0, calls);
    end(endpoint);
}

/* The handler is called with no lock held: it may call the library. */
static mx_endpoint_t reentered;
static int depth;

static mx_return_t reentering(char *message, mx_return_t code)
{
    (void)message;
    if (depth++ == 0) {
        mx_status_t status;
        uint32_t result;
        OK(mx_progress(reentered));
        OK(mx_test_any(reentered, 0, 0, &status, &result));
    }
    return code;
}

static void handler_may_call(void)
{
    mx_status_t status;
    uint32_t result;
    mx_set_error_handler(reentering);
    OK(mx_init());
    reentered = open_any();
    GIVES(MX_BAD_MATCH_MASK, mx_iprobe(reentered, 1, 0, &status, &result));
    EQUAL(1, depth);
    end(reentered);
}

static void texts(void)
{
    for (int code = -3; code < 200; code++) {
        CHECK(mx_strerror((mx_return_t)code) != NULL && mx_strerror((mx_return_t)code)[0] != '\0');
        CHECK(mx_strstatus((mx_status_code_t)code) != NULL && mx_strstatus((mx_status_code_t)code)[0] != '\0');
    }
    CHECK(strcmp(mx_strerror(MX_TIMEOUT), mx_strerror(MX_BUSY)) != 0);
    CHECK(strcmp(mx_strstatus(MX_STATUS_TRUNCATED), mx_strstatus(MX_STATUS_SUCCESS)) != 0);
}

MAIN(TEST(fatal_by_default), TEST(variable_makes_them_return), TEST(omx_name_wins), TEST(fatal_at_completion),
     TEST(previous_handler_returned), TEST(answer_of_the_handler), TEST(endpoint_handler_first), TEST(once_for_each),
     TEST(completion_calls_it), TEST(not_yet_is_no_error), TEST(handler_may_call), TEST(texts))
