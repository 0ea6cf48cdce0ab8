package import Foundation
package import Ledger
package import Logging
package import Postgres
import Purchases
package import RabbitMQ
package import WorkQueue

/// One message of the dead-letter queue.
package struct DeadLetter: Sendable {
    /// The content of one line of the message. Pointers that shared a message are dead together, though only one of
    /// them may be the cause.
    package enum Line: Sendable, Equatable {
        case receipt(ReceiptStanding)
        case notification(NotificationStanding)
        /// A ring for this endpoint. A scheduler rings again as long as something is due.
        case ring(UUID)
        /// A pointer at a row that does not exist here.
        case unknown(UUID)
        /// No pointer of ours; its text, cut and printable.
        case unreadable(String)
    }

    package let lines: [Line]
    package let death: Death?
    fileprivate let delivery: Delivery

    /// The receipts that the message points at and that have not ended.
    package var open: [ReceiptStanding] {
        lines.compactMap { if case .receipt(let standing) = $0, !standing.state.isEnded { standing } else { nil } }
    }

    /// The notifications that the message points at and that have not ended.
    package var openNotifications: [NotificationStanding] {
        lines.compactMap {
            if case .notification(let standing) = $0, standing.state != .ended { standing } else { nil }
        }
    }

    /// Whether the message holds only pointers at existing rows.
    package var isReadable: Bool {
        lines.allSatisfy {
            switch $0 {
            case .receipt, .notification, .ring: true
            case .unknown, .unreadable: false
            }
        }
    }

    fileprivate var pointers: [(pointer: Pointer, lane: Lane)] {
        open.map { (Pointer(receiptID: $0.receiptID, attempt: $0.attempt), $0.lane) }
            + openNotifications.map { (Pointer(notificationID: $0.id, attempt: $0.attempt), .unposted) }
    }
}

/// The dead letters, for a command that shows them or publishes the ids of their receipts and notifications again.
///
/// The row is the truth. So a replay publishes a pointer with the row's present attempt, to the queue of the row's
/// lane. The dead letter itself is removed only after the broker has confirmed all its pointers. A second replay only
/// publishes one pointer too many.
package struct DeadLetters: Sendable {
    package enum Failure: Error, Sendable, CustomStringConvertible {
        case broker(RabbitMQError)
        case database(PostgresError)

        package var description: String {
            switch self {
            case .broker(let error): "\(error)"
            case .database(let error): "\(error)"
            }
        }
    }

    package struct Replay: Sendable, Equatable {
        /// The number of receipts and notifications whose ids were published.
        package var published = 0
        /// The number of receipts and notifications that have ended since.
        package var ended = 0
        /// The number of messages removed although a line was unreadable or unknown.
        package var discarded = 0
        /// The number of such messages that stay.
        package var kept = 0
    }

    /// How long to wait for the next message while the queue still holds some.
    private static let silenceMax: Duration = .seconds(5)
    private static let textMax = 120

    private let broker: BrokerConfiguration
    private let queues: Queues
    private let publisher: Publisher
    private let database: Database
    private let logger: Logger

    package init(
        broker: BrokerConfiguration, queues: Queues, publisher: Publisher, database: Database, logger: Logger
    ) {
        self.broker = broker
        self.queues = queues
        self.publisher = publisher
        self.database = database
        self.logger = logger
    }

    /// Returns some messages, which stay in the queue.
    ///
    /// - Parameter count: 1 to 65,535.
    package func look(at count: Int) async throws(Failure) -> [DeadLetter] {
        try await withLetters(count) { (letters, _) async throws(Failure) in letters }
    }

    /// Publishes the ids of the open receipts and notifications of so many messages again, and removes messages that
    /// are readable.
    ///
    /// - Parameters:
    ///   - count: 1 to 65,535.
    ///   - discards: also removes messages with unreadable or unknown lines; otherwise those stay, and their readable
    ///     lines are published.
    ///   - actor: the person who replays, for the audit.
    package func replay(_ count: Int, discards: Bool, actor: String) async throws(Failure) -> Replay {
        try await withLetters(count) { (letters, consumer) async throws(Failure) in
            var replay = Replay()
            for letter in letters {
                for (pointer, lane) in letter.pointers {
                    do throws(RabbitMQError) {
                        try await publisher.publish(pointer.text, to: queues.verify(lane))
                    } catch {
                        throw .broker(error)
                    }
                    replay.published += 1
                }
                replay.ended += letter.lines.count {
                    switch $0 {
                    case .receipt(let row): row.state.isEnded
                    case .notification(let row): row.state == .ended
                    case .ring: true
                    case .unknown, .unreadable: false
                    }
                }
                if letter.isReadable || discards { consumer.acknowledge([letter.delivery]) }
                if !letter.isReadable { if discards { replay.discarded += 1 } else { replay.kept += 1 } }
            }
            do throws(PostgresError) {
                try await Repairs(database: database, actor: actor)
                    .noteReplay(of: replay.published, discarded: replay.discarded)
            } catch {
                throw .database(error)
            }
            return replay
        }
    }

    // MARK: Steps

    /// Takes messages from the queue for the time of `body`. Unacknowledged messages go back.
    private func withLetters<Value: Sendable>(
        _ count: Int, _ body: ([DeadLetter], Consumer) async throws(Failure) -> Value
    ) async throws(Failure) -> Value {
        let ready: Int
        do throws(RabbitMQError) { ready = try await publisher.depth(of: queues.dead) } catch { throw .broker(error) }
        let consumer = Consumer(
            broker, topology: queues.topology,
            subscriptions: [Subscription(queue: queues.dead, prefetch: min(count, max(1, ready)))], logger: logger)
        do throws(Failure) {
            let letters = ready == 0 ? [] : try await read(try await take(min(count, ready), from: consumer))
            let value = try await body(letters, consumer)
            await consumer.close()
            return value
        } catch {
            await consumer.close()
            throw error
        }
    }

    /// Takes so many messages, or fewer where another consumer takes some at the same time.
    private func take(_ count: Int, from consumer: Consumer) async throws(Failure) -> [Delivery] {
        await consumer.start()
        if let failure = await consumer.failure { throw .broker(failure) }
        var taken: [Delivery] = []
        while taken.count < count {
            // The reading task ends without a message when its time is over; a later message goes back at the close.
            let next = await withTaskGroup(of: Delivery?.self) { group in
                group.addTask {
                    for await delivery in consumer.deliveries { return delivery }
                    return nil
                }
                group.addTask {
                    try? await Task.sleep(for: Self.silenceMax)
                    return nil
                }
                let first = await group.next() ?? nil
                group.cancelAll()
                return first
            }
            guard let next else { break }
            taken.append(next)
        }
        return taken
    }

    private func read(_ deliveries: [Delivery]) async throws(Failure) -> [DeadLetter] {
        let bodies: [[[UInt8]]] = deliveries.map { delivery in
            delivery.body.split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false).map(Array.init)
        }
        let pointers = bodies.joined().compactMap { Pointer($0) }
        let (receiptIDs, notificationIDs) = (
            Set(pointers.compactMap(\.receiptID)), Set(pointers.filter { $0.kind == .notification }.map(\.id))
        )
        let receipts: [ReceiptStanding]
        let notifications: [NotificationStanding]
        do throws(PostgresError) {
            receipts = receiptIDs.isEmpty ? [] : try await database.run(Statements.standings, Array(receiptIDs))
            notifications =
                notificationIDs.isEmpty
                ? [] : try await database.run(Statements.notificationStandings, Array(notificationIDs))
        } catch {
            throw .database(error)
        }
        var standings = Dictionary(
            receipts.map { ($0.receiptID, DeadLetter.Line.receipt($0)) }, uniquingKeysWith: { first, _ in first })
        for row in notifications { standings[row.id] = .notification(row) }
        for pointer in pointers where pointer.kind == .endpoint { standings[pointer.id] = .ring(pointer.id) }
        return zip(deliveries, bodies).map { delivery, lines in
            DeadLetter(
                lines: lines.map { line in
                    guard let pointer = Pointer(line) else { return .unreadable(Self.printable(line)) }
                    return standings[pointer.id] ?? .unknown(pointer.id)
                },
                death: delivery.death, delivery: delivery)
        }
    }

    /// A stranger's text in printable ASCII, so that it cannot control a terminal.
    private static func printable(_ bytes: [UInt8]) -> String {
        let text = bytes.prefix(textMax).map { byte in
            (0x20..<0x7f).contains(byte) ? Character(Unicode.Scalar(byte)) : "?"
        }
        return String(text) + (bytes.count > textMax ? "… (\(bytes.count) bytes)" : "")
    }
}
