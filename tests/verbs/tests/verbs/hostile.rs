//! A hostile peer attaches as a domain of the same owner, and sends packets of any kind: random ones, and such as a device sends, with
//! changes and guessed keys. The program that it attacks has a good partner as well. `ISTHMUS_SEED` repeats the packets.

use isthmus_client::{
    Buffer, Completion, Domain, DomainId, EndpointAddress, EndpointIndex, Envelope, Matcher, Message, Options, Posted,
    Token, Unexpected,
};
use isthmus_testbed::{Exit, Proc, SeededRandom, short_or_long};
use isthmus_verbs_tests::{Stage, programs, timeout};

/// Packets of the short form and of the long one.
const PACKETS: (u64, u64) = (8_000, 500_000);

/// Packets between two exchanges of the victim with its good partner. After these, ended queue pairs are connected again.
const PACKETS_PER_EXCHANGE: u64 = 20;

/// The flags of packets, and syndromes: the usual ones, those of first packets, and ones with a payload that follows.
const PARAMETERS: [u64; 16] = [0x70, 0x70, 0x71, 0x50, 0x52, 0x20, 0x21, 0x22, 0, 1, 0x80, 0x81, 0x170, 0x120, 4, 0x2c];

/// The Q_Key of the attacked queue pairs.
const Q_KEY: u32 = 0x1111_1111;

/// The page size, the distance of the region that may be read, and the length of both.
const PAGE: u64 = 4096;
const READABLE: u64 = 24 * PAGE;
const REGION: u64 = 16 * PAGE;

/// Messages of the attacker that the victim has not taken yet, at most.
const UNDER_WAY_MAX: u32 = 64;

/// Drops what arrives, and never fetches what is announced.
#[derive(Debug, Default)]
struct Sink {
    under_way: u32,
}

impl Matcher for Sink {
    fn try_receive_eager(&mut self, _envelope: &Envelope, _words: &[u32]) -> bool {
        true
    }

    fn match_message(&mut self, _envelope: &Envelope) -> Option<Posted> {
        None
    }

    fn store_unexpected(&mut self, _message: Unexpected) {}

    fn unexpected_complete(&mut self, _envelope: &Envelope, _bytes: Vec<u8>) {}

    fn next_match(&mut self, _endpoint: EndpointIndex) -> Option<(Posted, Unexpected)> {
        None
    }

    fn complete(&mut self, _completion: Completion) {
        self.under_way -= 1;
    }

    fn is_busy(&self) -> bool {
        self.under_way < UNDER_WAY_MAX
    }

    fn forget(&mut self, _peer: DomainId) {}

    fn close(&mut self, _endpoint: EndpointIndex) -> (Vec<Posted>, Vec<Unexpected>) {
        (Vec::new(), Vec::new())
    }
}

/// The attacker: its domain, and the numbers that it knows.
struct Attacker {
    random: SeededRandom,
    domain: Domain<Sink>,
    at: EndpointIndex,
    to: EndpointAddress,
    /// Its own number, and those of the attacked queue pairs.
    own: u32,
    numbers: Vec<u32>,
    /// The first byte of the region that it may access, the key of that region, and the key of one that it may only read.
    open: u64,
    keys: [u32; 2],
}

impl Attacker {
    /// Attaches, and connects the queue pairs of the victim to itself.
    fn new(stage: &mut Stage, victim: &mut Proc, no_channels: bool) -> Self {
        let line = victim.line(timeout()).unwrap_or_else(|error| panic!("{error}"));
        let words: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let [numbers @ .., open, key, readable] = &words[..] else { panic!("{line}") };
        let numbers: Vec<u32> = numbers.iter().map(|number| *number as u32).collect();
        let options =
            Options { socket: Some(stage.daemon().socket()), no_autostart: true, no_channels, ..Options::default() };
        let mut domain = Domain::attach_matching(&options, Sink::default()).unwrap();
        let at = domain.open(EndpointIndex::new(0), "verbs").unwrap();
        let own = domain.verbs_take(at).unwrap().start;
        let to = domain.verbs_resolve([0; 16], numbers[0]).unwrap();
        victim.send_line(&own.to_string()).unwrap();
        victim.wait_line("ready", timeout()).unwrap_or_else(|error| panic!("{error}"));
        let keys = [*key as u32, *readable as u32];
        Self { random: SeededRandom::new(), domain, at, to, own, numbers, open: *open, keys }
    }

    fn word(&mut self) -> u32 {
        self.random.bits() as u32
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        *self.random.pick(choices).unwrap()
    }

    fn key(&mut self) -> u32 {
        let key = self.one_of(&self.keys.clone());
        match self.random.below(4) {
            0 => self.word(),
            1 => key ^ 1 << self.random.below(32),
            _ => key,
        }
    }

    /// An address in a region, at its end, between regions, or anywhere.
    fn address(&mut self) -> u64 {
        let region = self.open + self.one_of(&[0, READABLE]);
        match self.random.below(8) {
            0 => self.random.bits(),
            1 => region + REGION - self.random.below(64),
            2 => region + REGION + self.random.below(4 * PAGE),
            3 => region - 1 - self.random.below(64),
            4 => u64::MAX - self.random.below(64),
            _ => region + self.random.below(REGION / 8) * 8,
        }
    }

    fn length(&mut self) -> u32 {
        let lengths = [0, 1, 8, 100, 129, 4096, 60_000, REGION as u32, 1 << 30];
        match self.random.below(8) {
            0 => self.word(),
            _ => self.one_of(&lengths),
        }
    }

    /// A packet as a device sends it, with the length of a payload that follows.
    fn packet(&mut self) -> (u64, Vec<u8>, Option<u32>) {
        let (kind, parameter) = (1 + self.random.below(9), self.one_of(&PARAMETERS));
        let mut count = self.one_of(&[0_u64, 0, 0, 1, 2, 0xff_ffff]);
        let mut words = Vec::new();
        if kind == 2 {
            count = u64::from(self.own);
            words.extend([Q_KEY, 0]);
        } else if parameter & 0x40 != 0 && kind != 7 {
            words.push(self.own);
        }
        if (3..=5).contains(&kind) {
            let address = self.address();
            words.extend([address as u32, (address >> 32) as u32, self.key()]);
        }
        let extra = match kind {
            4 => 1,
            5 => 4,
            _ => 0,
        };
        words.extend((0..extra).map(|_| self.length()));
        words.extend((parameter & 2 != 0).then_some(7));
        words.extend((parameter & 0x80 != 0 && kind == 2).then_some([0; 8]).into_iter().flatten());
        let follows = (parameter & 1 != 0).then(|| self.length());
        words.extend(follows);
        let mut body: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        if follows.is_none() && kind != 4 && kind != 5 {
            let room = 128 - body.len().min(128);
            let len = self.random.below(room as u64 + 1);
            body.extend((0..len).map(|_| self.random.bits() as u8));
        }
        let number = self.one_of(&self.numbers.clone());
        (kind << 60 | parameter << 48 | count << 24 | u64::from(number), body, follows)
    }

    /// Changes some bits, or the length.
    fn mutate(&mut self, tag: &mut u64, body: &mut Vec<u8>) {
        for _ in 0..self.random.below(4) {
            match self.random.below(6) {
                0 => *tag ^= 1 << self.random.below(64),
                1 => body.truncate(self.random.below(body.len() as u64 + 1) as usize),
                2 => body.push(self.random.bits() as u8),
                _ if body.is_empty() => {}
                _ => {
                    let at = self.random.below(body.len() as u64) as usize;
                    body[at] ^= 1 << self.random.below(8);
                }
            }
        }
    }

    /// Sends a packet, and often the payload that it announces.
    fn send(&mut self) {
        let (mut tag, mut body, mut follows) = self.packet();
        match self.random.below(8) {
            0 => {
                tag = self.random.bits();
                let len = self.random.below(129);
                body = (0..len).map(|_| self.random.bits() as u8).collect();
                follows = None;
            }
            1..4 => self.mutate(&mut tag, &mut body),
            _ => {}
        }
        self.post(tag, body);
        if let Some(len) = follows.filter(|len| *len <= REGION as u32)
            && !self.random.one_in(4)
        {
            let other = self.random.below(2 * REGION) as u32;
            let len = if self.random.one_in(4) { other } else { len };
            let byte = self.random.bits() as u8;
            self.post(8 << 60, vec![byte; len as usize]);
        }
    }

    fn post(&mut self, tag: u64, body: Vec<u8>) {
        self.domain.progress();
        assert!(self.domain.wait_busy(Some(timeout().remaining())), "the victim takes no messages");
        if body.len() <= 128 && self.domain.inject(self.at, self.to, tag, &body) {
            return;
        }
        let message =
            Message { token: Token::new(1), from: self.at, to: self.to, tag, buffer: Buffer::from(body), sync: false };
        self.domain.matcher_mut().under_way += 1;
        self.domain.post(message).expect("the domain is attached");
    }
}

#[track_caller]
fn attack(no_channels: bool, packets: u64) {
    if programs().is_none() {
        return;
    }
    let Some(mut stage) = Stage::new() else { return };
    let mut victim = stage.launch(stage.server(), "/programs/victim", &[], &[]).with_stdin().spawn().unwrap();
    let mut attacker = Attacker::new(&mut stage, &mut victim, no_channels);
    println!("ISTHMUS_SEED={:#x}", attacker.random.seed());
    for _ in 0..packets / PACKETS_PER_EXCHANGE {
        victim.wait_line("exchanged", timeout()).unwrap_or_else(|error| panic!("{error}"));
        (0..PACKETS_PER_EXCHANGE).for_each(|_| attacker.send());
    }
    victim.close_stdin();
    let finished = victim.finish(timeout()).unwrap();
    assert!(
        finished.exit == Exit::Code(0) && finished.lines.last().is_some_and(|line| line == "done"),
        "{finished:#?}"
    );
    let said = &finished.lines[finished.lines.len() - 2];
    println!("{said}");
    let counts: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [exchanges, changed, keys, requests] = counts[..] else { panic!("{finished:#?}") };
    assert!(exchanges > packets / PACKETS_PER_EXCHANGE && changed > 0 && keys + requests > 0, "{said}");
}

#[test]
fn hostile_packets_touch_nothing_that_the_peer_may_not_access() {
    attack(false, short_or_long(PACKETS.0, PACKETS.1));
}

#[test]
fn hostile_packets_on_the_daemon_path_touch_nothing_that_the_peer_may_not_access() {
    attack(true, short_or_long(PACKETS.0, PACKETS.1) / 4);
}
