package import Foundation
package import Ledger
package import Logging
package import Postgres
import Purchases
package import RabbitMQ
package import WorkQueue

/// One message of the dead-letter queue.
package struct DeadLetter: Sendable {
    /// What one of its lines says. Rings that shared a message died together, for the sake of one of them.
    package enum Line: Sendable, Equatable {
        case receipt(ReceiptStanding)
        /// A pointer at a row that is not here.
        case unknown(UUID)
        /// No pointer of ours; its text, cut and printable.
        case unreadable(String)
    }

    package let lines: [Line]
    package let death: Death?
    fileprivate let delivery: Delivery

    /// The receipts that it points at and that have not ended.
    package var open: [ReceiptStanding] {
        lines.compactMap { if case .receipt(let standing) = $0, !standing.state.isEnded { standing } else { nil } }
    }

    /// Whether nothing is in it but pointers at rows that are here.
    package var isReadable: Bool {
        lines.allSatisfy { if case .receipt = $0 { true } else { false } }
    }
}

/// The messages that nobody could work on: shown, and rung for again.
///
/// The row is the truth, so what is published again is a pointer as the row stands now, to the queue of its lane; the
/// dead letter itself goes only after the broker has confirmed all of them. Done twice, it is a ring too many.
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
        /// Receipts that were rung for.
        package var published = 0
        /// Receipts that have ended since.
        package var ended = 0
        /// Messages that are gone although somebody could not be read or found.
        package var discarded = 0
        /// Such messages that stay.
        package var kept = 0
    }

    /// How long nothing may come while messages lie there.
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

    /// Some of them, which stay where they are.
    ///
    /// - Parameter count: 1 to 65,535.
    package func look(at count: Int) async throws(Failure) -> [DeadLetter] {
        try await withLetters(count) { (letters, _) async throws(Failure) in letters }
    }

    /// Rings for the receipts of so many; what was rung for, or has ended, is gone.
    ///
    /// - Parameters:
    ///   - count: 1 to 65,535.
    ///   - discards: takes away also what cannot be read or found; otherwise that stays, and its neighbours are rung for.
    ///   - actor: who does it, for the audit.
    package func replay(_ count: Int, discards: Bool, actor: String) async throws(Failure) -> Replay {
        try await withLetters(count) { (letters, consumer) async throws(Failure) in
            var replay = Replay()
            for letter in letters {
                for standing in letter.open {
                    do throws(RabbitMQError) {
                        try await publisher.publish(
                            Pointer(receiptID: standing.receiptID, attempt: standing.attempt).text,
                            to: queues.verify(standing.lane))
                    } catch {
                        throw .broker(error)
                    }
                    replay.published += 1
                }
                replay.ended += letter.lines.count {
                    if case .receipt(let row) = $0 { row.state.isEnded } else { false }
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

    /// Lends what lies there. What is not acknowledged goes back.
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

    /// Fewer where somebody else takes them at the same time.
    private func take(_ count: Int, from consumer: Consumer) async throws(Failure) -> [Delivery] {
        await consumer.start()
        if let failure = await consumer.failure { throw .broker(failure) }
        var taken: [Delivery] = []
        while taken.count < count {
            // The reader ends without a delivery where its time is over; what comes later goes back at the close.
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
        let ids = Set(bodies.joined().compactMap { Pointer($0)?.receiptID })
        let rows: [ReceiptStanding]
        do throws(PostgresError) {
            rows = ids.isEmpty ? [] : try await database.run(Statements.standings, Array(ids))
        } catch {
            throw .database(error)
        }
        let standings = Dictionary(rows.map { ($0.receiptID, $0) }, uniquingKeysWith: { first, _ in first })
        return zip(deliveries, bodies).map { delivery, lines in
            DeadLetter(
                lines: lines.map { line in
                    guard let pointer = Pointer(line) else { return .unreadable(Self.printable(line)) }
                    return standings[pointer.receiptID].map(DeadLetter.Line.receipt) ?? .unknown(pointer.receiptID)
                },
                death: delivery.death, delivery: delivery)
        }
    }

    /// A stranger's text: nothing of it may speak to a terminal.
    private static func printable(_ bytes: [UInt8]) -> String {
        let text = bytes.prefix(textMax).map { byte in
            (0x20..<0x7f).contains(byte) ? Character(Unicode.Scalar(byte)) : "?"
        }
        return String(text) + (bytes.count > textMax ? "… (\(bytes.count) bytes)" : "")
    }
}
