import ArgumentParser
import Commands
import Encoding
import Foundation
import Ledger
import Purchases
import RabbitMQ
import Support

extension QueueCommand {
    struct Dead: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Show the dead letters: what each says, how it died, where its receipts and notifications stand.",
            discussion: """
                They stay where they are. As who may read the queue (`makegood_deploy`, of `makegood roles \
                --rabbitmq`); at the database the rights of support are enough.
                """)

        @Option(help: "At most so many.")
        var limit = 100
        @Flag(help: "Print JSON.")
        var json = false

        func validate() throws { try validateLimit(limit) }

        func run() async throws {
            let letters = try await Connections.withDeadLetters { try await $0.look(at: limit) }
            if json { return try JSON.print(letters.map(JSON.DeadLetter.init)) }
            if letters.isEmpty { print("no dead letters") }
            for letter in letters {
                print(letter.death?.sentence ?? "published here by somebody")
                for line in letter.lines { print("  \(line.sentence)") }
            }
        }
    }

    struct Replay: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Publish the receipts and notifications of dead letters again, and remove those letters.",
            discussion: """
                The row is the truth: what is published is its pointer as it stands now, and what has ended since is \
                left alone. Letters that nobody can read, or that point at no row of this database, stay unless \
                --discard is given. Receipts come again by their due times without this command; it saves the wait. \
                As who may read the queue and publish (`makegood_deploy`). Safe to repeat. Audited.
                """)

        @Option(help: "At most so many.")
        var limit = 1000
        @Flag(help: "Also take away what cannot be read or found.")
        var discard = false

        func validate() throws { try validateLimit(limit) }

        func run() async throws {
            let replay = try await Connections.withDeadLetters {
                try await $0.replay(limit, discards: discard, actor: Connections.actor)
            }
            let published = replay.published.counted(
                "receipt or notification was", "receipts and notifications were")
            print("\(published) published again, \(replay.ended) had ended")
            if replay.discarded > 0 {
                let letters = replay.discarded.counted("letter")
                print("\(letters) nobody could read or find \(replay.discarded == 1 ? "is" : "are") gone")
            }
            if replay.kept > 0 {
                let letters = replay.kept.counted("letter")
                print(
                    "\(letters) nobody can read or find \(replay.kept == 1 ? "stays" : "stay"): "
                        + "look with `makegood queue dead`, then --discard")
            }
        }
    }
}

private func validateLimit(_ limit: Int) throws {
    guard (1...10_000).contains(limit) else { throw ValidationError("--limit must be 1 to 10000") }
}

extension JSON {
    struct DeadLetter: Encodable {
        struct Line: Encodable {
            var receiptId: String?
            var notificationId: String?
            var endpointId: String?
            var appId: String?
            var state: String?
            var reason: String?
            var attempt: Int?
            var unreadable: String?
        }

        let queue: String?
        let reason: String?
        let diedAt: String?
        let lines: [Line]

        init(_ letter: Support.DeadLetter) {
            (queue, reason, diedAt) = (letter.death?.queue, letter.death?.reason, letter.death?.time)
            lines = letter.lines.map { line in
                switch line {
                case .receipt(let row):
                    Line(
                        receiptId: row.receiptID.text, appId: row.appID, state: row.state.rawValue,
                        reason: row.reason, attempt: row.attempt)
                case .notification(let row):
                    Line(
                        notificationId: row.id.text, appId: row.appID, state: row.state.rawValue, reason: row.reason,
                        attempt: row.attempt)
                case .ring(let id): Line(endpointId: id.text)
                case .unknown(let id): Line(receiptId: id.text)
                case .unreadable(let text): Line(unreadable: text)
                }
            }
        }
    }
}

extension Support.DeadLetter.Line {
    fileprivate var sentence: String {
        switch self {
        case .receipt(let row):
            "\(row.receiptID.text) of \(row.appID): \(row.state.rawValue)"
                + (row.reason.map { ", \($0)" } ?? "") + ", attempt \(row.attempt)"
        case .notification(let row):
            "\(row.id.text) \(row.type) of \(row.appID ?? "no app"): \(row.state.rawValue)"
                + (row.reason.map { ", \($0)" } ?? "") + ", attempt \(row.attempt)"
        case .ring(let id): "\(id.text): a ring of an endpoint; a scheduler rings again as long as something is due"
        case .unknown(let id): "\(id.text): no such receipt or notification in this database"
        case .unreadable(let text): "unreadable: \(text)"
        }
    }
}

extension Death {
    /// RFC 3339, UTC.
    fileprivate var time: String? { at.map { Date(timeIntervalSince1970: TimeInterval($0)).formatted(.iso8601) } }

    fileprivate var sentence: String { "\(time ?? "at an unknown time") \(reason) in \(queue)" }
}
