//! The state of a run, its events, and the work of its processors.

use super::engine::{Dma, Master};
use super::exchange::Exchanges;
use super::frame::{Frame, Message};
use super::outcome::{Activity, Counts};
use super::queue::{Completed, Driver, Polls};
use super::steering::Steering;
use crate::config::{Config, Placement};
use crate::cpu::{Completion, Cpu, Priority};
use crate::events::EventQueue;
use crate::link::{Begin, Link, STATIONS, Station};
use crate::rpc::Call;
use crate::tcp::{Receiver, Sender};
use crate::time::{Span, Time};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use strum::EnumCount;

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A job of a processor is complete.
    Cpu { processor: usize, generation: u64 },
    /// A station on an adapter's link has finished its gap between two frames.
    Ready { adapter: usize, station: Station },
    /// The last bit of a frame has left a station.
    Sent { adapter: usize, station: Station, transmission: u64 },
    /// A station begins to send, unless a later [`Begin`] has replaced this event.
    Begin { adapter: usize, begin: Begin },
    /// The last bit of a frame from the host has left on a full-duplex link.
    Left(Frame),
    /// A frame has reached a station.
    Arrive(Station, Frame),
    /// The bus has transferred a frame to the host.
    DmaWritten(Frame),
    /// The bus has transferred a frame to the adapter, and the engine has processed the frame.
    DmaRead(Frame),
    /// The polling timer of a driver ticks.
    Poll { queue: usize },
    /// The NAPI timer of a queue starts a poll.
    NapiTimer { queue: usize },
    /// The moderator of a queue must be checked for a due interrupt.
    Moderation { queue: usize },
    /// A frame of the peer has passed the slower link.
    PeerSends(Frame),
    /// The peer's reply to a call is ready.
    PeerReplies { slot: usize, number: u64, attempt: u32 },
    /// The peer has processed an acknowledgement.
    PeerAck { flow: usize, next: u64, window: u64 },
    /// The sender of a stream is due to write. The sender is the peer's application or the host's process.
    Write { flow: usize },
    /// The host's process is due to send another datagram.
    NextDatagram,
    /// A request, a datagram or a raw frame is due.
    RequestDue { from_host: bool },
    /// A process wakes up for a message.
    WakeUp(Message),
    /// The next exchange of a closed loop begins.
    NextExchange { from_host: bool },
    /// A message is sent: the peer's response is ready, or a lost message is retransmitted.
    SendMessage(Message),
    /// The retransmission timer of a flow fires. The sender's deadline can have moved since the event was scheduled.
    Retransmission { flow: usize },
    /// The delayed-ACK timer of a flow fires.
    DelayedAck { flow: usize },
    /// The retransmission timer of a call fires. The call's deadline can have moved since the event was scheduled.
    RpcTimer { slot: usize },
    /// A period of `host.mask_time` begins in which interrupts are masked.
    Mask,
    /// The measured time begins.
    Warm,
}

/// A job of a host processor.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    InterruptEntry { queue: usize },
    ReadOut { queue: usize },
    BatchFrame { queue: usize, frame: Frame },
    BatchBegin { queue: usize },
    PollTurn { queue: usize },
    Segment { flow: usize, start: u64, len: u64 },
    Ack { flow: usize, next: u64, window: u64 },
    Read { flow: usize, bytes: u64 },
    BusyPoll { flow: usize, until: Time },
    Fragment { slot: usize, number: u64, attempt: u32 },
    Call { slot: usize },
    Reply { slot: usize },
    Completions { queue: usize, completed: Completed },
    AckIn { flow: usize, next: u64, window: u64 },
    Write { flow: usize },
    Send { flow: usize, start: u64, len: u64 },
    Datagram,
    Message(Message),
    Process(Message),
    Mask,
}

impl Job {
    /// Returns whether the job is a protocol's work on a received frame.
    pub(super) fn is_of_protocol(&self) -> bool {
        matches!(self, Self::Segment { .. } | Self::Fragment { .. } | Self::AckIn { .. } | Self::Message(_))
    }

    fn owner(&self) -> Owner {
        match *self {
            Self::InterruptEntry { queue }
            | Self::ReadOut { queue }
            | Self::BatchFrame { queue, .. }
            | Self::BatchBegin { queue }
            | Self::PollTurn { queue }
            | Self::Completions { queue, .. } => Owner::Queue(queue),
            Self::Segment { flow, .. }
            | Self::Ack { flow, .. }
            | Self::Read { flow, .. }
            | Self::BusyPoll { flow, .. }
            | Self::AckIn { flow, .. }
            | Self::Write { flow }
            | Self::Send { flow, .. } => Owner::Flow(flow),
            Self::Message(message) | Self::Process(message) => Owner::Flow(message.flow),
            Self::Fragment { slot, .. } | Self::Call { slot } | Self::Reply { slot } => Owner::Call(slot),
            Self::Datagram | Self::Mask => Owner::None,
        }
    }

    /// Returns the index of the job's connection or call. `None` for a job of the driver.
    fn connection(&self) -> Option<usize> {
        match self.owner() {
            Owner::Flow(number) | Owner::Call(number) => Some(number),
            Owner::Queue(_) | Owner::None => None,
        }
    }
}

/// The owner of a job: a queue's driver, a connection, or a call.
pub(super) enum Owner {
    Queue(usize),
    Flow(usize),
    Call(usize),
    None,
}

/// A TCP connection with data in one direction.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// `true` if data flow from the peer to the host.
    pub(super) is_to_host: bool,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// `true` while the host's process reads or writes.
    pub(super) process_works: bool,
    /// Number of segments dropped by the host because the adapter reported a bad checksum.
    pub(super) refused: u64,
    /// Time of the earliest scheduled event of the retransmission timer.
    pub(super) timer_at: Option<Time>,
    /// Time at which a delayed acknowledgement is due.
    pub(super) ack_due: Option<Time>,
    pub(super) ack_timer_runs: bool,
    /// Number of bytes written so far by the sending application or process.
    pub(super) written: u64,
    /// Scheduled time of the next write of the host's process, if the process writes at a given rate.
    pub(super) write_at: Option<Time>,
}

/// An adapter of the host, with its link and the stations at both ends. The adapter's queue pairs are in `drivers` of
/// [`Simulation`].
#[derive(Debug)]
pub(super) struct Adapter {
    pub(super) dma: Dma,
    pub(super) link: Link,
    pub(super) stations: [StationState; STATIONS],
}

/// The state of a run.
#[derive(Debug)]
pub(super) struct Simulation {
    pub(super) config: Config,
    pub(super) events: EventQueue<Event>,
    pub(super) now: Time,
    pub(super) rng: ChaCha8Rng,
    pub(super) cpus: Vec<Cpu<Job>>,
    /// Processor time of all jobs submitted so far, by processor and activity.
    pub(super) activities: Vec<[Span; Activity::COUNT]>,
    /// Processor whose job has just completed, while follow-up jobs are submitted; otherwise `None`.
    pub(super) deciding: Option<usize>,
    /// Number of interrupts so far, for round-robin placement.
    pub(super) interrupt_turn: usize,
    pub(super) adapters: Vec<Adapter>,
    /// Buses of the adapters.
    pub(super) masters: Vec<Master>,
    pub(super) steering: Steering,
    /// One driver per queue, in order of adapters.
    pub(super) drivers: Vec<Driver>,
    pub(super) flows: Vec<Flow>,
    pub(super) calls: Vec<Call>,
    pub(super) reply_frames: Vec<u64>,
    pub(super) datagram_frames: Vec<u64>,
    /// `true` while the process waits for room to send another datagram.
    pub(super) datagram_waits: bool,
    /// Payload of all datagrams sent so far, in bytes.
    pub(super) datagram_bytes_sent: u64,
    /// Payload of datagrams whose completion is not yet processed by the host, in bytes.
    pub(super) datagram_bytes: u64,
    pub(super) exchanges: Option<Exchanges>,
    /// Number of frames in the backlog of each processor, between interrupt handler and protocol.
    pub(super) backlogs: Vec<usize>,
    /// State of the polls that the softirqs run, for each processor.
    pub(super) polls: Vec<Polls>,
    /// Time at which the slower link of the peer is free again.
    pub(super) hop_free: Time,
    pub(super) counts: Counts,
    pub(super) handled: u64,
}

/// A station, with its queue of frames to send.
#[derive(Debug)]
pub(super) struct StationState {
    pub(super) queue: VecDeque<Frame>,
    /// `true` if the station neither sends nor waits to send.
    pub(super) is_idle: bool,
    /// Time from the end of one frame until the station is ready for the next frame.
    pub(super) gap: Span,
    /// Earliest time at which the station can send its next frame.
    pub(super) ready_at: Time,
    /// Serial number of the current transmission. A collision increments the number.
    pub(super) transmission: u64,
}

impl StationState {
    pub(super) fn new(gap: Span) -> Self {
        Self { queue: VecDeque::new(), is_idle: true, gap, ready_at: Time::START, transmission: 0 }
    }
}

impl Simulation {
    /// Returns the processor for a job.
    pub(super) fn place(&self, priority: Priority, job: &Job) -> usize {
        let count = self.cpus.len();
        if count == 1 {
            return 0;
        }
        if priority == Priority::Softirq
            && let Some(processor) = self.drivers[self.queue_of(job)].napi.polled_on
        {
            return processor;
        }
        match self.config.host.placement {
            // The UDP sender has no connection, and runs on the last processor.
            _ if matches!(job, Job::Datagram) => count - 1,
            Placement::Balanced => job.connection().unwrap_or_else(|| self.turn_of(job)) % count,
            Placement::Pinned | Placement::Spread
                if priority != Priority::User || matches!(job, Job::PollTurn { .. }) =>
            {
                self.queue_of(job) % count
            }
            Placement::Pinned => count - 1,
            Placement::Spread => job.connection().map_or(count - 1, |connection| self.steering.process(connection)),
        }
    }

    /// Returns the serial number of the interrupt that caused a job of the driver.
    fn turn_of(&self, job: &Job) -> usize {
        if let Owner::Queue(queue) = job.owner() { self.drivers[queue].turn } else { self.interrupt_turn }
    }

    /// Returns the queue whose driver or connection causes a job. A job without an owner, such as [`Job::Mask`], counts
    /// as a job of the first queue. Except with [`Placement::Balanced`], interrupts are thus masked on the first
    /// processor.
    fn queue_of(&self, job: &Job) -> usize {
        match job.owner() {
            Owner::Queue(queue) => queue,
            Owner::Flow(flow) => self.steering.of_flow(flow),
            Owner::Call(_) => self.steering.of_replies(),
            Owner::None => Steering::OF_DATAGRAMS,
        }
    }

    /// Returns the index of the adapter that receives or sends a frame. Adapter 1 sends the frames that the host
    /// forwards.
    pub(super) fn adapter_of(&self, frame: &Frame) -> usize {
        usize::from(self.steering.is_forwarded(&frame.content))
    }

    /// Submits a job to a processor. The job's costs are added to the time of the activities at once, not when the job
    /// runs.
    pub(super) fn work(&mut self, priority: Priority, job: Job, costs: &[(Activity, Span)]) {
        let processor = self.place(priority, &job);
        let cost = self.charge(processor, costs);
        let completion = self.cpus[processor].submit(self.now, priority, job, cost);
        self.expect(processor, completion);
    }

    /// Submits a follow-up job. On the processor of the completed job, the follow-up job runs ahead of other jobs of
    /// its priority.
    pub(super) fn work_next(&mut self, priority: Priority, job: Job, costs: &[(Activity, Span)]) {
        let processor = self.place(priority, &job);
        if self.deciding != Some(processor) {
            return self.work(priority, job, costs);
        }
        let cost = self.charge(processor, costs);
        self.cpus[processor].submit_next(priority, job, cost);
    }

    fn charge(&mut self, processor: usize, costs: &[(Activity, Span)]) -> Span {
        let mut sum = Span::ZERO;
        for &(activity, span) in costs {
            self.activities[processor][activity as usize] += span;
            sum += span;
        }
        sum
    }

    pub(super) fn expect(&mut self, processor: usize, completion: Option<Completion>) {
        if let Some(Completion { at, generation }) = completion {
            self.events.schedule(at, Event::Cpu { processor, generation });
        }
    }
}

impl Adapter {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            dma: Dma::default(),
            link: Link::new(config.link),
            stations: [StationState::new(config.adapter.gap), StationState::new(config.peer.gap)],
        }
    }
}

impl Flow {
    pub(super) fn new(Config { host, peer, .. }: &Config, is_to_host: bool) -> Self {
        let (sender, policy) =
            if is_to_host { (peer.sender, host.ack_policy) } else { (host.send.sender, peer.ack_policy) };
        Self { is_to_host, sender: Sender::new(sender), receiver: Receiver::new(policy), ..Self::default() }
    }

    pub(super) fn waiting(&self, at: usize) -> String {
        let who = if self.is_to_host { "peer" } else { "host" };
        let (byte, under_way, times) =
            (self.sender.unacknowledged(), self.sender.in_flight(), self.sender.timeouts_in_row);
        let refused = match self.refused {
            0 => String::new(),
            count => format!("; the host has refused {count} segments marked bad by its adapter"),
        };
        format!(
            "connection {at}: the {who} waits for the acknowledgement of byte {byte}, with {under_way} bytes in \
             flight, after {times} timeouts in a row{refused}"
        )
    }
}
