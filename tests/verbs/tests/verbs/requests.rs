//! The cases of `c/requests.c`: requests that stock programs do not make, and their errors.

use isthmus_testbed::Exit;
use isthmus_verbs_tests::{Stage, programs};

/// The path of the program in a container.
const PROGRAM: &str = "/programs/requests";

/// A policy that forbids what the first device of a process sends to others: that device has the name of `ISTHMUS_DOMAIN`.
const FORBIDDING: &str = "[[policy.rules]]\nfrom = \"sender\"\nallow = false\n";

/// Runs a case, with the memory shared and then through the daemon.
#[track_caller]
fn run(stage: &Stage, case: &str, variables: &[(&str, &str)]) {
    let finished = stage.run(PROGRAM, &[case], variables);
    assert!(finished.exit == Exit::Code(0) && finished.lines == ["done"], "{case} {variables:?}: {finished:#?}");
}

macro_rules! cases {
    ($($case:ident)*) => {
        $(#[test]
        fn $case() {
            if programs().is_none() {
                return;
            }
            let Some(stage) = Stage::new() else { return };
            for variables in [&[][..], &[("ISTHMUS_CHANNELS", "0")]] {
                run(&stage, stringify!($case), variables);
            }
        })*

        #[test]
        fn every_case_of_the_program_has_a_test() {
            let Some(folder) = programs() else { return };
            let listed = std::process::Command::new(folder.join("requests")).arg("--list").output().unwrap();
            let tested = [$(stringify!($case),)* "forbidden_pair"];
            assert_eq!(String::from_utf8(listed.stdout).unwrap().lines().collect::<Vec<_>>(), tested);
        }
    };
}

cases! {
    two_devices empty_messages lists immediate inline_bytes receiver_never_ready
    sleeper_is_refused sleeper_is_flushed receiver_ready_later message_too_long foreign_memory
    memory_behind_the_region flush_in_order drained_queue unsignaled full_queues unreliable datagrams destroy_with_work_outstanding
    shared_receive_queue fork_in_the_middle killed_peer absent_peer receiver_polls_no_more silent_target
    memory_beside_a_new_thread memory_that_cannot_be_accessed memory_unmapped_while_registered limits_of_writes
    jump_while_it_serves
    extended_sends extended_posts_are_whole
    extended_datagrams extended_completions
    computes_after_an_event two_channels signals_while_asleep cancelled_while_asleep jump_out_of_the_sleep
    channel_that_does_not_block channels_come_and_go
}

#[test]
fn pair_that_policy_forbids_is_not_reached() {
    if programs().is_none() {
        return;
    }
    let Some(stage) = Stage::with_config(FORBIDDING) else { return };
    run(&stage, "forbidden_pair", &[("ISTHMUS_DOMAIN", "sender")]);
}
