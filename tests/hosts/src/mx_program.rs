//! A program on a host that reads orders, one per line: `c/mx_program.c`.

use crate::test_host::{TestHost, timeout};
use isthmus_mx_tests::build;
use isthmus_testbed::{Deadline, Proc, ProcError};
use std::path::{Path, PathBuf};

/// Numbers of `mx_return_t` and `mx_status_code_t` that tests expect.
pub mod code {
    /// mx_hostname_to_nic_id: no such name.
    pub const HOST_NOT_FOUND: &str = "28";
    /// mx_connect: no answer in time.
    pub const TIMEOUT: &str = "30";
    /// mx_connect: an endpoint number that the board cannot have.
    pub const BAD_ENDPOINT_ID: &str = "32";
    /// mx_connect: the endpoint is not open.
    pub const CONNECTION_FAILED: &str = "33";
    /// mx_connect: opened with another key.
    pub const BAD_CONNECTION_KEY: &str = "34";
    /// mx_connect: an address that no board has.
    pub const NIC_NOT_FOUND: &str = "36";
    /// Not of MX: a message is missing. Its sender has got the reason.
    pub const MISSING: &str = "0";
    /// Status: no answer in time.
    pub const STATUS_TIMEOUT: &str = "4";
    /// Status: the endpoint was closed.
    pub const STATUS_ENDPOINT_CLOSED: &str = "8";
    /// Status: given up, or disconnected.
    pub const STATUS_UNREACHABLE: &str = "9";
    /// Status: opened with another key.
    pub const STATUS_BAD_KEY: &str = "11";
    /// Status: a number that the board cannot have.
    pub const STATUS_BAD_ENDPOINT: &str = "12";
}

/// A stream of messages, seen from one end.
#[derive(Clone, Copy, Debug)]
pub enum Flow {
    /// Out, to the peer that the program connected in this slot.
    To(usize, u32),
    /// In, from whomever.
    From(u32),
}

/// A program, killed when dropped. Methods panic where the program fails: that fails the test.
#[derive(Debug)]
pub struct MxProgram {
    /// The program's process.
    pub proc: Proc,
    /// The program's board and its endpoint number, once it has one.
    pub at: (String, u32),
    key: u32,
}

impl MxProgram {
    /// A program without an endpoint.
    pub fn start(side: &TestHost, variables: &[(&str, &str)]) -> Self {
        let launch = side.launch(program()).with_stdin();
        let launch = variables.iter().fold(launch, |launch, (variable, value)| launch.env(variable, value));
        let proc = launch.spawn().unwrap_or_else(|error| panic!("{error}"));
        Self { proc, at: (String::new(), u32::MAX), key: 0 }
    }

    /// A program with an endpoint of board 0, guarded by 7.
    pub fn open(side: &TestHost) -> Self {
        let mut program = Self::start(side, &[]);
        program.open_on(0, 7);
        program
    }

    /// Opens an endpoint.
    #[track_caller]
    pub fn open_on(&mut self, board: u32, key: u32) {
        let answer = self.request(&format!("open {board} -1 {key}"));
        let mut words = answer.split(' ').skip(1);
        let place = words.next().zip(words.next().and_then(|number| number.parse().ok()));
        let (name, number) = place.unwrap_or_else(|| panic!("{answer}"));
        (self.at, self.key) = ((name.to_owned(), number), key);
    }

    /// Gives an order.
    #[track_caller]
    pub fn send_line(&mut self, order: &str) {
        self.proc.send_line(order).unwrap_or_else(|error| panic!("{order}: {error}"));
    }

    /// The answer to the oldest order that has none yet.
    #[track_caller]
    pub fn answer(&mut self) -> String {
        self.try_answer(timeout()).unwrap_or_else(|error| panic!("{:?}: {error}", self.at))
    }

    /// Returns the answer, or an error if the program ended or said nothing.
    pub fn try_answer(&mut self, deadline: Deadline) -> Result<String, ProcError> {
        self.proc.find_line(deadline, "an answer", |line| !line.starts_with("at "))
    }

    /// Gives an order and waits for the answer.
    #[track_caller]
    pub fn request(&mut self, order: &str) -> String {
        self.send_line(order);
        self.answer()
    }

    /// Gives an order and asserts that the answer is `answer`.
    #[track_caller]
    pub fn expect(&mut self, order: &str, answer: &str) {
        assert_eq!(self.request(order), answer, "{:?} was told: {order}", self.at);
    }

    /// The order must be refused with this number.
    #[track_caller]
    pub fn expect_refusal(&mut self, order: &str, code: &str) {
        let answer = self.request(order);
        assert!(answer.starts_with(&format!("refused {code} ")), "{order}: {answer}");
    }

    /// Returns the arguments with which another program connects to this one.
    pub fn address(&self) -> String {
        format!("{} {} {}", self.at.0, self.at.1, self.key)
    }

    /// Connects to another program, which is in that slot from then on.
    #[track_caller]
    pub fn connect(&mut self, slot: usize, other: &Self) {
        self.expect(&format!("connect {slot} {} 0", other.address()), "connected");
    }

    /// Connects again and again, until it works: for programs that come back.
    #[track_caller]
    pub fn reconnect(&mut self, slot: usize, other: &Self) {
        let deadline = timeout();
        let order = format!("connect {slot} {} 2000", other.address());
        loop {
            let answer = self.request(&order);
            if answer == "connected" {
                return;
            }
            assert!(!deadline.has_passed(), "{order}: {answer}");
        }
    }

    /// Begins to carry flows of `count` messages each, `window` at a time. `sizes` is `mixed`, `large` or a number. The program reports `at
    /// N` after every `tick` messages received.
    #[track_caller]
    pub fn begin(&mut self, count: u64, window: u32, sizes: &str, tick: u64, flows: &[Flow]) {
        let flows: String = flows.iter().map(|flow| format!(" {flow}")).collect();
        self.send_line(&format!("run {count} {window} {sizes} {tick}{flows}"));
    }

    /// Waits until `messages` messages have come of a run that was begun with a `tick`.
    #[track_caller]
    pub fn until(&mut self, messages: u64) {
        let line = format!("at {messages}");
        self.proc.wait_line(&line, timeout()).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits for the end of the run, which must succeed with `messages` messages.
    #[track_caller]
    pub fn done(&mut self, messages: u64) {
        let answer = self.answer();
        assert!(answer.starts_with(&format!("done {messages} ")), "{:?}: {answer}\n{}", self.at, self.proc.stderr());
    }

    /// Waits for the end of the run, which must fail; returns the status with which the first request failed.
    #[track_caller]
    pub fn expect_failure(&mut self) -> String {
        let answer = self.answer();
        assert!(answer.starts_with("broken "), "{:?}: {answer}", self.at);
        answer.rsplit(' ').next().unwrap_or_default().to_owned()
    }

    /// Asserts that no unexpected message has come; then the program closes its endpoint and ends.
    #[track_caller]
    pub fn close(mut self) {
        self.expect("quiet", "quiet");
        self.expect("close", "closed");
        self.proc.finish(timeout()).unwrap_or_else(|error| panic!("{error}")).expect_success();
    }

    /// One message there and one back, of every class.
    #[track_caller]
    pub fn exchange(&mut self, other: &mut Self, streams: [u32; 2], count: u64) {
        self.begin(count, 8, "mixed", 0, &[Flow::To(0, streams[0]), Flow::From(streams[1])]);
        other.begin(count, 8, "mixed", 0, &[Flow::To(0, streams[1]), Flow::From(streams[0])]);
        self.done(2 * count);
        other.done(2 * count);
    }

    /// Two programs on two hosts, each connected to the other in slot 0.
    #[track_caller]
    pub fn pair(a: &TestHost, b: &TestHost) -> (Self, Self) {
        let (mut a, mut b) = (Self::open(a), Self::open(b));
        a.connect(0, &b);
        b.connect(0, &a);
        (a, b)
    }
}

impl std::fmt::Display for Flow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::To(slot, stream) => write!(f, "to:{slot}:{stream}"),
            Self::From(stream) => write!(f, "from:{stream}"),
        }
    }
}

/// Returns the program itself, for callers that run it elsewhere.
pub fn program() -> PathBuf {
    build::compiled(&Path::new(env!("CARGO_MANIFEST_DIR")).join("c/mx_program.c"))
}
