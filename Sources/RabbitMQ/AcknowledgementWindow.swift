import DequeModule

/// The deliveries of one channel that are not settled, and the fewest commands that settle the decided ones. Pure.
///
/// The window ignores a tag that is unknown or settled already: the broker would close the channel for it (406).
/// RabbitMQ numbers the deliveries of a channel from 1 without gaps. Memory: a byte for each delivery since the oldest
/// unsettled one.
struct AcknowledgementWindow {
    enum Command: Equatable {
        /// `multiple` also settles every unsettled delivery before it.
        case acknowledge(UInt64, multiple: Bool)
        case reject(UInt64)
    }

    private enum Entry {
        case open, acknowledged, rejected, settled
    }

    /// The tag of `entries[0]`.
    private var firstTag: UInt64 = 1
    private var entries: Deque<Entry> = []
    /// Tags decided since the last `takeCommands`, in that order.
    private var decided: [UInt64] = []
    /// Deliveries without a decision.
    private(set) var open = 0

    init() {}

    /// The broker delivered this tag.
    mutating func delivered(_ tag: UInt64) throws(RabbitMQError) {
        guard tag == firstTag + UInt64(entries.count) else { throw .protocolViolation }
        entries.append(.open)
        open += 1
    }

    /// Decides to acknowledge a delivery. False, without effect, if the tag is unknown or decided already.
    @discardableResult
    mutating func acknowledge(_ tag: UInt64) -> Bool { decide(tag, .acknowledged) }

    /// Decides to reject a delivery; the broker will dead-letter the message. Returns as `acknowledge` does.
    @discardableResult
    mutating func reject(_ tag: UInt64) -> Bool { decide(tag, .rejected) }

    /// The commands to send, in this order, for all decisions since the last call.
    mutating func takeCommands() -> [Command] {
        guard !decided.isEmpty else { return [] }
        var commands: [Command] = []
        // Rejections first: a following multiple ack covers everything still unsettled before it.
        for tag in decided where entries[index(tag)] == .rejected {
            commands.append(.reject(tag))
            entries[index(tag)] = .settled
        }
        var last: UInt64?
        var count = 0
        while let entry = entries.first, entry != .open {
            if entry == .acknowledged { (last, count) = (firstTag, count + 1) }
            entries.removeFirst()
            firstTag += 1
        }
        if let last { commands.append(.acknowledge(last, multiple: count > 1)) }
        for tag in decided where tag >= firstTag && entries[index(tag)] == .acknowledged {
            commands.append(.acknowledge(tag, multiple: false))
            entries[index(tag)] = .settled
        }
        decided.removeAll(keepingCapacity: true)
        return commands
    }

    private func index(_ tag: UInt64) -> Int { Int(tag - firstTag) }

    private mutating func decide(_ tag: UInt64, _ entry: Entry) -> Bool {
        guard tag >= firstTag, tag - firstTag < UInt64(entries.count) else { return false }
        guard entries[index(tag)] == .open else { return false }
        entries[index(tag)] = entry
        decided.append(tag)
        open -= 1
        return true
    }
}
