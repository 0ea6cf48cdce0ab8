import DequeModule

/// The publishes that the broker has not answered yet. Pure: tags in, settled tickets out.
///
/// The broker numbers the publishes of a channel from 1 and answers each exactly once, in any order, several at a time
/// with `multiple`. The broker returns an unroutable message *before* the message is acknowledged
/// (https://www.rabbitmq.com/docs/confirms). An `OutstandingConfirms` belongs to one channel: each
/// connection makes a new one.
struct OutstandingConfirms<Ticket> {
    typealias Instant = ContinuousClock.Instant

    enum Answer: Equatable {
        case confirmed, returned, refused
    }

    struct Settled {
        let ticket: Ticket
        let answer: Answer
        let sentAt: Instant
    }

    private enum Place {
        case open(Ticket)
        /// The publisher has given up; the broker has not answered yet.
        case abandoned
        case settled
    }

    private struct Entry {
        var place: Place
        var sentAt: Instant
        var isReturned = false
    }

    /// The tag of `entries[0]`. Settled entries at the front are dropped, so the front is always unsettled.
    private var firstTag: UInt64 = 1
    private var entries: Deque<Entry> = []
    /// Publishes without the broker's answer; the window limits their number.
    private(set) var unconfirmed = 0
    /// Publishes whose ticket is not answered.
    private(set) var open = 0

    init() {}

    /// When the oldest unanswered publish was sent.
    var oldest: Instant? { entries.first?.sentAt }

    /// Registers a publish and returns the tag that the broker will use for it. Call it before sending.
    mutating func register(_ ticket: Ticket, at now: Instant) -> UInt64 {
        entries.append(Entry(place: .open(ticket), sentAt: now))
        unconfirmed += 1
        open += 1
        return firstTag + UInt64(entries.count - 1)
    }

    /// Records that the broker returned the message with this tag; the ack follows. Unknown tags are ignored.
    mutating func markReturned(_ tag: UInt64) {
        guard let index = index(of: tag) else { return }
        entries[index].isReturned = true
    }

    /// Takes a basic.ack or basic.nack and returns the publishes that it settles. Tag 0 with `multiple` means all (AMQP
    /// 0-9-1, basic.ack).
    ///
    /// - Throws: `protocolViolation` for a tag that was never sent or was answered before.
    mutating func settle(_ tag: UInt64, multiple: Bool, refused: Bool) throws(RabbitMQError) -> [Settled] {
        var settled: [Settled] = []
        if multiple {
            let count: Int
            if tag == 0 {
                count = entries.count
            } else {
                guard let last = index(of: tag) else { throw .protocolViolation }
                count = last + 1
            }
            for index in 0..<count { settle(at: index, refused: refused, into: &settled) }
        } else {
            guard let index = index(of: tag) else { throw .protocolViolation }
            if case .settled = entries[index].place { throw .protocolViolation }
            settle(at: index, refused: refused, into: &settled)
        }
        while let first = entries.first, case .settled = first.place {
            entries.removeFirst()
            firstTag += 1
        }
        return settled
    }

    /// Takes out the tickets sent before an instant. The broker's answers to those publishes are still expected.
    mutating func abandon(sentBefore limit: Instant) -> [Ticket] {
        var tickets: [Ticket] = []
        for index in entries.indices {
            guard entries[index].sentAt < limit else { break }
            guard case .open(let ticket) = entries[index].place else { continue }
            tickets.append(ticket)
            entries[index].place = .abandoned
        }
        open -= tickets.count
        return tickets
    }

    /// Begins every deadline anew, because the broker could not answer until now.
    mutating func restart(at now: Instant) {
        for index in entries.indices { entries[index].sentAt = now }
    }

    /// Takes out all tickets, oldest first, with the time each was sent, because the channel is gone.
    mutating func removeAll() -> [(ticket: Ticket, sentAt: Instant)] {
        var tickets: [(ticket: Ticket, sentAt: Instant)] = []
        for entry in entries {
            if case .open(let ticket) = entry.place { tickets.append((ticket, entry.sentAt)) }
        }
        self = OutstandingConfirms()
        return tickets
    }

    private func index(of tag: UInt64) -> Int? {
        guard tag >= firstTag, tag - firstTag < UInt64(entries.count) else { return nil }
        return Int(tag - firstTag)
    }

    private mutating func settle(at index: Int, refused: Bool, into settled: inout [Settled]) {
        let entry = entries[index]
        switch entry.place {
        case .settled: return
        case .abandoned: break
        case .open(let ticket):
            open -= 1
            let answer: Answer = entry.isReturned ? .returned : refused ? .refused : .confirmed
            settled.append(Settled(ticket: ticket, answer: answer, sentAt: entry.sentAt))
        }
        unconfirmed -= 1
        entries[index].place = .settled
    }
}
