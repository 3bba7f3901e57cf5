//! Transfers of frames over the bus by a bus-master adapter.

use super::engine::Posted;
use super::exchange::Place;
use super::frame::{Frame, HOST};
use super::state::{Event, Simulation};
use crate::time::{Span, Time};

impl Simulation {
    /// Transfers a received frame to the host.
    pub(super) fn dma_receive(&mut self, frame: Frame) {
        let now = self.now;
        let early = match self.config.adapter.engine.cut_through {
            0 => Span::ZERO,
            len => self.config.link.frame_time(frame.len) - self.config.link.frame_time(len.min(frame.len)),
        };
        let began = Time(now.0.saturating_sub(early.0));
        let adapter = self.adapter_of(&frame);
        let master = adapter % self.masters.len();
        let engine = &self.config.adapter.engine;
        match self.adapters[adapter].dma.receive(engine, &mut self.masters[master], began, now, frame.len) {
            Some(done) if done > now => self.events.schedule(done, Event::DmaWritten(frame)),
            Some(_) => self.on_dma_written(frame),
            None => self.lose_frame(&frame, Place::Adapter),
        }
    }

    pub(super) fn on_dma_written(&mut self, frame: Frame) {
        let adapter = self.adapter_of(&frame);
        self.adapters[adapter].dma.receive_fifo -= frame.len;
        self.frame_is_held(frame);
    }

    /// Posts a frame or a super-frame of the host for transmission.
    pub(super) fn dma_transmit(&mut self, frame: Frame) {
        let adapter = self.adapter_of(&frame);
        self.adapters[adapter].dma.posted.push_back(Posted { frame, taken: 0, piece: 0 });
        self.fill_transmit_fifo(adapter);
    }

    fn fill_transmit_fifo(&mut self, adapter: usize) {
        let master = adapter % self.masters.len();
        while let Some((piece, ready)) =
            self.adapters[adapter].dma.next_piece(&self.config, &mut self.masters[master], self.now)
        {
            if ready > self.now {
                self.events.schedule(ready, Event::DmaRead(piece));
            } else {
                self.send(HOST, piece);
            }
        }
    }

    /// Removes a sent frame from the transmit FIFO, and refills the FIFO.
    pub(super) fn dma_sent(&mut self, frame: Frame) {
        let adapter = self.adapter_of(&frame);
        self.adapters[adapter].dma.transmit_fifo -= frame.len;
        self.fill_transmit_fifo(adapter);
    }
}
