//! Every case of every program in `c/`, each a test.

use isthmus_client::{Options, QueryClient, Topic};
use isthmus_testbed::{DaemonProcess, Finished};

use crate::build::{example, program};
use crate::run::{case_with, daemon, launch_on_host, listed, timeout};

/// A module of tests for a program: a test for each of its cases, and one that finds none missing. Cases behind `apart` need
/// other surroundings and have a test further below.
macro_rules! cases {
    ($program:ident: $($case:ident)*; apart: $($apart:ident)*) => {
        mod $program {
            $(#[test]
            fn $case() {
                crate::run::case_with(stringify!($program), stringify!($case), "", &[]);
            })*

            #[test]
            fn program_has_no_unlisted_cases() {
                let here = [$(stringify!($case),)* $(stringify!($apart),)*];
                let mut listed = crate::run::listed(stringify!($program));
                listed.retain(|case| !here.contains(&case.as_str()));
                assert!(listed.is_empty(), "not run: {listed:?}");
            }
        }
    };
}

cases!(lifecycle: bad_api init_twice before_init finalize_pending endpoint_numbers parameters closed_handles sessions;
       apart: two_boards);
cases!(errors: fatal_by_default variable_makes_them_return omx_name_wins fatal_at_completion previous_handler_returned
       answer_of_the_handler endpoint_handler_first once_for_each completion_calls_it not_yet_is_no_error handler_may_call
       texts; apart:);
cases!(connect: refusals as_a_request to_oneself contexts_of_addresses disconnecting reopened at_the_same_time;
       apart: silent_daemon unanswered);
cases!(messages: truncation truncation_in_segments statuses bursts segments_up_to_256 segments_of_nothing too_many_segments
       synchronous_sends sent_without_further_calls
       sent_ahead_without_further_calls buffered forgotten memory_exhausted bad_arguments request_timeouts; apart:);
cases!(matching: posting_order unexpected_order order_across_classes hundred_thousand_unexpected bad_masks any_of_the_done
       peeked_is_over cancelling cancelled_among_others context_ids context_ids_by_variable; apart:);
cases!(selfsend: of_each_length pending_until_matched truncated in_segments among_others; apart:);
cases!(handler: continued posted_inside finished of_self_sends of_self_sends_the_long_way called_when inside progression_off disabling_waits; apart:);
cases!(waiting: timeouts infinite_is_zero one_wakeup_for_all not_sticky signals_end_no_wait signals_end_waits_where_told_to events_wake_the_right_one self_sends_wake
       woken_by_anothers_progress two_threads endpoint_for_each_thread polling_lets_others_run; apart:);
cases!(forking: in_the_middle begins_after_finalize begins_while_a_thread_enters; apart:);
cases!(killed: in_a_stream in_a_large_send in_a_large_receive while_asleep while_asleep_for_anything what_had_arrived_stays successor_is_reached at_any_moment;
       apart:);
cases!(restart: ; apart: in_between);
cases!(closing: at_close at_finalize at_exit receiver_was_killed receiver_has_closed nothing_outstanding many_that_exit
       to_another_endpoint_of_the_process; apart: given_up given_up_at_exit given_up_in_a_handler);
cases!(environment: any_endpoint rendezvous_threshold shared_rendezvous_threshold self_the_short_way self_the_long_way early_ends
       waits_sleep waits_spin bound_all bound_by_endpoint bound_to_nothing mx_names_ignored read_when_the_first_opens
       numbers_as_atoi; apart: large_ones);
cases!(info: numbers widths_of_the_board product_texts counters refused_questions mapper regcache never_implemented no_raw_endpoints
       request_timeouts; apart: names);
cases!(mpi: open_mpi_mtl open_mpi_btl mpich_nemesis; apart:);

const TWO_BOARDS: &str = "[[mx.board]]\n[[mx.board]]\n";
const RACK: &str = "[[mx.board]]\nname = \"rack:0\"\nmac = \"02:00:00:00:00:2a\"\n";

#[test]
fn endpoints_spread_over_two_boards() {
    case_with("lifecycle", "two_boards", TWO_BOARDS, &[]);
}

#[test]
fn boards_have_names() {
    case_with("info", "names", RACK, &[]);
}

/// All cases of a program once more, with variables set that change how messages travel, and nothing else.
#[track_caller]
fn run_all_with(program: &str, variables: &[(&str, &str)]) {
    for case in listed(program) {
        println!("{program} {case} {variables:?}");
        case_with(program, &case, "", variables);
    }
}

#[test]
fn self_sends_use_the_normal_path_when_no_self_is_set() {
    run_all_with("selfsend", &[("MX_DISABLE_SELF", "1")]);
    run_all_with("selfsend", &[("MX_DISABLE_SELF", "0"), ("OMX_DISABLE_SELF", "1")]);
}

#[test]
fn messages_take_the_daemon_path_when_channels_are_disabled() {
    run_all_with("messages", &[("MX_DISABLE_SHMEM", "1")]);
    run_all_with("handler", &[("OMX_DISABLE_SHARED", "1")]);
}

/// Returns a report of a daemon.
fn asked(daemon: &DaemonProcess, topic: Topic) -> serde_json::Value {
    let options = Options { socket: Some(daemon.socket()), ..Options::default() };
    serde_json::from_str(&QueryClient::connect(&options).unwrap().query(topic, &[]).unwrap()).unwrap()
}

/// Message bytes that go through the daemon while a program sends 64 MiB.
fn daemon_path_bytes(variables: &[(&str, &str)]) -> u64 {
    let program = program("environment");
    let (_scratch, daemon) = daemon("");
    let launch = variables
        .iter()
        .fold(launch_on_host(&daemon, program).arg("large_ones"), |launch, (name, value)| launch.env(name, value));
    assert_eq!(launch.spawn().unwrap().finish(timeout()).unwrap().expect_success(), ["done"]);
    let report = asked(&daemon, Topic::Metrics);
    let lines = report["text"].as_str().unwrap().lines();
    let bytes = lines
        .filter_map(|line| line.strip_prefix("isthmus_worker_bytes_total{")?.rsplit(' ').next()?.parse::<u64>().ok());
    bytes.sum()
}

#[test]
fn daemon_carries_all_messages_when_channels_are_disabled() {
    const ALL: u64 = 64 << 20;
    for off in [[("MX_DISABLE_SHMEM", "1")], [("OMX_DISABLE_SHARED", "1")]] {
        let carried = daemon_path_bytes(&off);
        assert!(carried >= ALL, "{off:?}: {carried}");
    }
    for on in [&[][..], &[("MX_DISABLE_SHMEM", "1"), ("OMX_DISABLE_SHARED", "0")]] {
        let carried = daemon_path_bytes(on);
        assert!(carried < ALL / 2, "{on:?}: {carried}");
    }
}

/// Since Linux 6.11 the kernel says what lies at an address, and without that no buffer is moved.
fn has_procmap_query() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|sign: char| !sign.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(11))
}

#[test]
fn buffers_used_again_are_moved_onto_shared_pages_unless_the_cache_is_off() {
    if !has_procmap_query() {
        return println!("skipped: before Linux 6.11 no buffer is moved");
    }
    for (moved, variables) in [
        ("1", &[][..]),
        ("1", &[("MX_RCACHE", "2")]),
        ("0", &[("MX_RCACHE", "0")]),
        ("0", &[("OMX_RCACHE", "0")]),
        ("1", &[("MX_RCACHE", "0"), ("OMX_RCACHE", "1")]),
        ("1", &[("MX_RCACHE", "0"), ("OMX_IGNORE_MX_ENV", "1")]),
    ] {
        println!("moved: {moved}, {variables:?}");
        case_with("environment", "large_ones", "", &[&[("MX_TEST_MOVED", moved)], variables].concat());
    }
}

#[test]
fn messages_arrive_with_and_without_the_cache() {
    for value in ["0", "1", "2"] {
        run_all_with("messages", &[("MX_RCACHE", value)]);
    }
    run_all_with("mpi", &[("MX_RCACHE", "1"), ("OMX_RCACHE", "0")]);
}

#[test]
fn two_threads_spin_when_waits_are_set_to_spin() {
    case_with("waiting", "two_threads", "", &[("OMX_WAITSPIN", "1")]);
    case_with("waiting", "timeouts", "", &[("OMX_WAITSPIN", "1")]);
    case_with("waiting", "not_sticky", "", &[("OMX_WAITSPIN", "1")]);
}

#[test]
fn connect_times_out_when_the_daemon_does_not_answer() {
    let program = program("connect");
    let (_scratch, mut daemon) = daemon("");
    let mut proc = launch_on_host(&daemon, program).arg("silent_daemon").with_stdin().spawn().unwrap();
    proc.wait_line("ready", timeout()).unwrap();
    daemon.proc().freeze().unwrap();
    proc.send_line("silent").unwrap();
    proc.wait_line("thaw", timeout()).unwrap();
    daemon.proc().thaw().unwrap();
    proc.send_line("thawed").unwrap();
    assert_eq!(proc.finish(timeout()).unwrap().expect_success(), ["done"]);
}

#[test]
fn connect_request_ends_at_its_deadline() {
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let silent_peer = format!(
        "[[mx.board]]\nlinks = [{{ udp = \"127.0.0.1:{port}\", peers = [\"127.0.0.1:9\"] }}]\n\
         peers = [{{ mac = \"02:00:00:00:00:0b\", name = \"silent:0\" }}]\n"
    );
    case_with("connect", "unanswered", &silent_peer, &[]);
}

/// True once two domains have had messages by a channel from each other.
fn is_channel_bidirectional(daemon: &DaemonProcess) -> bool {
    let pairs = asked(daemon, Topic::Channels);
    pairs["pairs"].as_array().unwrap().iter().any(|pair| {
        let directions = pair["channel"]["directions"].as_array();
        directions.is_some_and(|all| all.iter().all(|direction| direction["messages"].as_u64() > Some(0)))
    })
}

#[test]
fn endpoints_survive_a_daemon_restart() {
    let program = program("restart");
    let (_scratch, mut daemon) = daemon("");
    let mut proc = launch_on_host(&daemon, program).arg("in_between").with_stdin().spawn().unwrap();
    for _ in 0..2 {
        proc.wait_line("exchanged", timeout()).unwrap();
        while !is_channel_bidirectional(&daemon) {
            proc.send_line("again").unwrap();
            proc.wait_line("exchanged", timeout()).unwrap();
        }
        proc.send_line("enough").unwrap();
        proc.wait_line("ready", timeout()).unwrap();
        daemon.kill_and_restart(timeout()).unwrap();
        proc.send_line("restarted").unwrap();
    }
    assert_eq!(proc.finish(timeout()).unwrap().expect_success(), ["done"]);
}

#[test]
fn attach_refused_by_policy_returns_no_perm() {
    let program = program("lifecycle");
    let other_user = 61_399; // The tests' own user is another one.
    let (_scratch, daemon) = daemon(&format!("[policy]\nattach = [{other_user}]\n"));
    let proc = launch_on_host(&daemon, program).arg("sessions").spawn().unwrap();
    let Finished { exit, stderr, .. } = proc.finish(timeout()).unwrap();
    assert!(!exit.success() && stderr.contains("answers 7 "), "{stderr}");
}

#[test]
fn name_refused_by_policy_returns_no_perm_and_says_what_to_do() {
    let program = program("lifecycle");
    let (_scratch, daemon) = daemon("[policy]\nnames = [{ name = \"bound-*\", user = 61399 }]\n");
    let proc = launch_on_host(&daemon, program).arg("sessions").env("ISTHMUS_DOMAIN", "bound-1").spawn().unwrap();
    let Finished { exit, stderr, .. } = proc.finish(timeout()).unwrap();
    assert!(!exit.success() && stderr.contains("answers 7 "), "{stderr}");
    let proc = launch_on_host(&daemon, example("mx_info")).env("ISTHMUS_DOMAIN", "bound-1").spawn().unwrap();
    proc.finish(timeout()).unwrap().expect_success(); // It only asks.
    let pingpong = launch_on_host(&daemon, example("mx_pingpong")).env("ISTHMUS_DOMAIN", "bound-1").spawn().unwrap();
    let Finished { exit, stderr, .. } = pingpong.finish(timeout()).unwrap();
    assert!(!exit.success() && stderr.contains("policy.names") && stderr.contains("ISTHMUS_DOMAIN"), "{stderr}");
}

#[test]
fn returns_no_driver_without_a_daemon() {
    let program = program("lifecycle");
    let (_scratch, stopped) = {
        let (scratch, daemon) = daemon("");
        let launch = launch_on_host(&daemon, program).arg("sessions");
        daemon.stop(timeout()).unwrap();
        (scratch, launch)
    };
    let Finished { exit, stderr, .. } = stopped.spawn().unwrap().finish(timeout()).unwrap();
    assert!(!exit.success());
    assert!(["answers 5 ", "answers 6 "].iter().any(|code| stderr.contains(code)), "{stderr}");
}

/// A sender that gives up: the program, the daemon's log and its counters report what is lost.
#[track_caller]
fn sender_gives_up(case: &str) {
    let program = program("closing");
    let (_scratch, daemon) = daemon("");
    let proc = launch_on_host(&daemon, program).arg(case).env("ISTHMUS_LINGER_S", "1").spawn().unwrap();
    let Finished { exit, lines, stderr } = proc.finish(timeout()).unwrap();
    assert!(exit.success() && lines == ["done"], "{lines:?} {stderr}");
    assert!(stderr.contains("messages are lost although their sends were over"), "{stderr}");
    let metrics = asked(&daemon, Topic::Metrics);
    let count = |metric: &str| {
        let mut lines = metrics["text"].as_str().unwrap().lines();
        lines.find_map(|line| line.strip_prefix(metric)?.trim().parse::<u64>().ok())
    };
    let lost = count("isthmus_undelivered_messages_total").unwrap();
    assert!(stderr.contains(&format!(" {lost} messages ")) && (1..400).contains(&lost), "{lost}: {stderr}");
    let reason = r#"isthmus_control_reasons_total{reason="messages-undelivered",kind="ended"}"#;
    assert_eq!(count(reason), Some(1));
    let log = daemon.stop(timeout()).unwrap().stderr;
    assert!(log.contains(&format!("leaves with {lost} messages that")), "{log}");
}

#[test]
fn messages_given_up_at_close_are_reported() {
    sender_gives_up("given_up");
}

#[test]
fn messages_given_up_at_exit_are_reported() {
    sender_gives_up("given_up_at_exit");
}

#[test]
fn exit_in_a_handler_ends_and_says_what_may_be_lost() {
    let (_scratch, daemon) = daemon("");
    let launch = launch_on_host(&daemon, program("closing")).arg("given_up_in_a_handler");
    let Finished { exit, lines, stderr } =
        launch.env("ISTHMUS_LINGER_S", "1").spawn().unwrap().finish(timeout()).unwrap();
    assert!(exit.success() && lines == ["done"], "{lines:?} {stderr}");
    let told = ["messages are lost although their sends were over", "the program exits within a call of MX"];
    let told: usize = told.map(|text| stderr.matches(text).count()).iter().sum();
    assert_eq!(told, 8, "{stderr}");
}
