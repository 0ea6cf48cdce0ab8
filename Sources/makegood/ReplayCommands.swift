import ArgumentParser
import Commands
import Encoding
import Foundation
import Ledger
import Postgres
import Purchases
import Settings

extension EventsCommand {
    struct Replay: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Send events to an endpoint once more.",
            discussion: """
                The events keep their ids and say which replay sends them. They go behind everything that is due at the \
                endpoint; what the endpoint has yet to get comes by itself and is passed over. Needs MAKEGOOD_CONFIG; at \
                the database the rights of support are enough. Running it again while the replay runs begins no second one.
                """)

        @Option(help: "The endpoint, as APP/NAME.")
        var endpoint: EndpointName
        @Option(help: ArgumentHelp("Only events of this time and later.", valueName: "2026-11-30T12:00:00Z"))
        var from: MomentArgument?
        @Option(help: ArgumentHelp("Only events of before this time.", valueName: "2026-12-01T00:00:00Z"))
        var to: MomentArgument?
        @Option(help: "Only events of this type. May be given more than once.")
        var type: [EventType] = []
        @Option(help: "Only events of this user, by the id that the app knows.")
        var user: String?
        @Option(help: "Only the event with this id. May be given more than once.")
        var id: [String] = []
        @Flag(help: "Only say how many events that would be.")
        var dryRun = false

        func validate() throws {
            if let from, let to, from.date >= to.date { throw ValidationError("--from must be before --to") }
            if user?.isEmpty == true { throw ValidationError("--user must name a user") }
            guard id.count <= ReplayQuestion.idsMax else {
                throw ValidationError("at most \(ReplayQuestion.idsMax) --id")
            }
            if let wrong = id.first(where: { UUID(uuidString: $0) == nil }) {
                throw ValidationError("--id must be a UUID, not \(wrong)")
            }
        }

        func run() async throws {
            let configuration = try Settings().loadConfiguration()
            guard
                let settings = configuration.apps[endpoint.key.appID]?.endpoints.first(where: {
                    $0.name.isSameText(as: endpoint.key.name)
                })
            else { throw ValidationError("MAKEGOOD_CONFIG has no endpoint \(endpoint)") }
            let filter = EndpointFilter(
                key: endpoint.key, types: settings.typeNames, environments: settings.environmentNames)
            var asked = ReplayQuestion(filter)
            (asked.from, asked.to) = (from?.date, to?.date)
            asked.types = type.isEmpty ? nil : type
            asked.ids = id.isEmpty ? nil : id.compactMap(UUID.init(uuidString:))
            let (span, replay) = try await Connections.withDatabase("events") { [asked] database in
                var question = asked
                if let user {
                    try await UserProtection.check(configuration.userKeys, in: database)
                    question.user = configuration.userKeys?.key(of: user, app: endpoint.key.appID) ?? user
                }
                guard let span = try await database.run(Statements.countReplay, question).first else {
                    return (ReplaySpan?.none, UUID?.none)
                }
                guard !dryRun, span.events > 0 || !span.isCounted else { return (span, nil) }
                let request = Statements.ReplayRequest(question, span, actor: Connections.actor)
                return (span, try await database.run(Statements.requestReplay, request).first)
            }
            guard let span else { return try endpoint.endUnknown() }
            if dryRun { return print("\(span.text) would be sent to \(endpoint)") }
            guard span.events > 0 || !span.isCounted else {
                print("no event is chosen that \(endpoint) gets")
                throw ExitCode(1)
            }
            guard let replay else {
                print("\(EventReplay.runningMax) replays of \(endpoint) run already: wait, or cancel one")
                throw ExitCode(1)
            }
            print("\(replay.text): \(span.text) to \(endpoint); makegood events replays shows how far it is")
        }
    }

    struct Replays: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "List the latest replays, each with how far it is.",
            discussion: "At the database the rights of support are enough.")

        private static let listMax = 100

        @Option(help: "Only this app.")
        var app: String?
        @Option(help: "Cancel this replay first. What is on the way arrives.")
        var cancel: String?
        @Flag(help: "Print JSON.")
        var json = false

        func validate() throws {
            if let cancel, UUID(uuidString: cancel) == nil { throw ValidationError("--cancel must be a UUID") }
        }

        func run() async throws {
            let id = cancel.flatMap(UUID.init(uuidString:))
            let (isFound, replays) = try await Connections.withDatabase("events", isReadOnly: id == nil) { database in
                var isFound = true
                if let id {
                    isFound = try await !database.run(
                        Statements.cancelReplay, (id: id, apps: nil, actor: Connections.actor)
                    ).isEmpty
                }
                return (isFound, try await database.run(Statements.listReplays, (app: app, limit: Self.listMax)))
            }
            guard isFound else {
                print("no such replay")
                throw ExitCode(1)
            }
            if json { return try JSON.print(JSON.Replays(replays: replays.map(JSON.Replay.init))) }
            if replays.isEmpty { print("no replays") }
            for replay in replays { print(replay.line) }
            if replays.count == Self.listMax { print("… and more") }
        }
    }
}

/// A time as a person gives it, in RFC 3339.
struct MomentArgument: ExpressibleByArgument, Sendable {
    let date: Date

    init?(argument: String) {
        guard let date = Date(rfc3339: argument) else { return nil }
        self.date = date
    }
}

extension EventType: ExpressibleByArgument {}

extension ReplaySpan {
    fileprivate var text: String { EventReplay.text(events, isCounted: isCounted) }
}

extension EventReplay {
    fileprivate static func text(_ events: Int, isCounted: Bool) -> String {
        let count = events.counted("event")
        return isCounted ? count : "\(count) of the first \(ReplayQuestion.countedMax), and perhaps more,"
    }

    fileprivate var line: String {
        var parts = ["\(id.text) to \(appID)/\(endpoint): \(state.rawValue)"]
        parts.append("\(sent) sent of \(Self.text(events, isCounted: isCounted))")
        if let from { parts.append("from \(from.rfc3339)") }
        if let to { parts.append("to \(to.rfc3339)") }
        if let types { parts.append("of \(types.joined(separator: " "))") }
        if user != nil { parts.append("of one user") }
        if let ids { parts.append("of \(ids.counted("id"))") }
        parts.append("by \(requestedBy) at \(requestedAt.rfc3339)")
        if let nextAt, let lastError {
            parts.append("waits until \(nextAt.rfc3339) after \(attempts.counted("attempt")): \(lastError)")
        }
        if let endedAt { parts.append("ended at \(endedAt.rfc3339)" + (cancelledBy.map { " by \($0)" } ?? "")) }
        return parts.joined(separator: ", ")
    }
}

extension JSON {
    struct Replays: Encodable {
        let replays: [Replay]
    }

    struct Replay: Encodable {
        let replayId: String
        let appId: String
        let endpoint: String
        let state: String
        let events: Int
        let hasMore: Bool
        let sent: Int
        let from: String?
        let to: String?
        let types: [String]?
        let ids: Int?
        let requestedBy: String
        let requestedAt: String
        let attempts: Int
        let lastError: String?
        let nextAt: String?
        let endedAt: String?
        let cancelledBy: String?

        init(_ replay: EventReplay) {
            (replayId, appId, endpoint) = (replay.id.text, replay.appID, replay.endpoint)
            (state, events, hasMore) = (replay.state.rawValue, replay.events, !replay.isCounted)
            (sent, from, to) = (replay.sent, replay.from?.rfc3339, replay.to?.rfc3339)
            (types, ids) = (replay.types, replay.ids)
            (requestedBy, requestedAt) = (replay.requestedBy, replay.requestedAt.rfc3339)
            (attempts, lastError, nextAt) = (replay.attempts, replay.lastError, replay.nextAt?.rfc3339)
            (endedAt, cancelledBy) = (replay.endedAt?.rfc3339, replay.cancelledBy)
        }
    }
}
