import ArgumentParser
import Commands
import Encoding
import Foundation
import Ledger
import Postgres
import Purchases
import Settings

/// `makegood endpoints`: what the endpoints of apps have yet to get, and what a person does where one takes nothing.
struct EndpointsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "endpoints",
        abstract: "Show how far events are delivered to the apps' endpoints, and have events sent again or given up.",
        discussion: "At the database the rights of support are enough. Endpoints themselves stand in MAKEGOOD_CONFIG.",
        subcommands: [List.self, Resume.self, Redrive.self, Skip.self])

    struct List: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "List the endpoints, each with its state and with what it has yet to get.")

        @Option(help: "Only this app.")
        var app: String?
        @Option(help: "Also the events that this endpoint did not take, as APP/NAME.")
        var endpoint: EndpointName?
        @Flag(help: "Print JSON.")
        var json = false

        func run() async throws {
            let (standings, undelivered) = try await Connections.withDatabase("endpoints", isReadOnly: true) {
                database in
                let standings = try await database.run(Statements.endpointStandings, endpoint?.key.appID ?? app)
                    .filter { endpoint == nil || $0.id == endpoint?.key.id }
                guard let endpoint else { return (standings, [UndeliveredEvent]()) }
                return (
                    standings,
                    try await database.run(
                        Statements.undeliveredEvents, (endpoint: endpoint.key.id, limit: EndpointsCommand.listMax))
                )
            }
            if let endpoint, standings.isEmpty { try endpoint.endUnknown() }
            if json {
                return try JSON.print(
                    JSON.Endpoints(
                        endpoints: standings.map(JSON.Endpoint.init),
                        undelivered: endpoint == nil ? nil : undelivered.map(JSON.Undelivered.init)))
            }
            if standings.isEmpty { print("no endpoints") }
            for standing in standings { print(standing.line) }
            for event in undelivered { print("  \(event.line)") }
            if undelivered.count == EndpointsCommand.listMax { print("  … and more") }
        }
    }

    struct Resume: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Try a suspended or failing endpoint at once.",
            discussion: """
                One event is sent. If the endpoint takes it, all others follow; otherwise the endpoint is tried again by \
                itself. Nothing was lost meanwhile. Audited, safe to repeat.
                """)

        @Argument(help: "The endpoint, as APP/NAME.")
        var endpoint: EndpointName

        func run() async throws {
            let isResumed = try await Connections.withDatabase("endpoints") { database in
                try await database.run(
                    Statements.resumeEndpoint, (endpoint: endpoint.key.id, actor: Connections.actor)
                ).first
            }
            guard let isResumed else { return try endpoint.endUnknown() }
            print(isResumed ? "\(endpoint) is tried now" : "\(endpoint) works already")
        }
    }

    struct Redrive: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Send events again now that an endpoint did not take, also parked ones.",
            discussion: """
                The order of each user stays: the event that was not taken goes first, and the later ones follow. Audited, \
                safe to repeat.
                """)

        @Option(help: "The endpoint, as APP/NAME.")
        var endpoint: EndpointName
        @Option(help: "The event for which this user's later events wait. Needs MAKEGOOD_CONFIG.")
        var user: String?
        @Option(help: "One event, by its id.")
        var event: String?
        @Flag(help: "Everything that is parked.")
        var parked = false

        func validate() throws {
            guard [user != nil, event != nil, parked].count(where: { $0 }) == 1 else {
                throw ValidationError("name one of --user, --event and --parked")
            }
            if let event, UUID(uuidString: event) == nil { throw ValidationError("--event must be a UUID") }
        }

        func run() async throws {
            let configuration = user == nil ? nil : try Settings().loadConfiguration()
            let count = try await Connections.withDatabase("endpoints") { database in
                var choice = Statements.EventRedrive.Choice.parked
                if let event = event.flatMap(UUID.init(uuidString:)) { choice = .event(event) }
                if let user, let configuration {
                    try await UserProtection.check(configuration.userKeys, in: database)
                    choice = .user(configuration.userKeys?.key(of: user, app: endpoint.key.appID) ?? user)
                }
                return try await database.run(
                    Statements.redriveEvents, .init(endpoint: endpoint.key.id, choice, actor: Connections.actor)
                ).first ?? 0
            }
            print("\(count.counted("event is", "events are")) sent again now")
            if count == 0, !parked { throw ExitCode(1) }
        }
    }

    struct Skip: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Give up one event that an endpoint does not take, so that its user's later events go on.",
            discussion: """
                The endpoint never gets this event as a webhook; the feed has it as before. Only an event that the endpoint \
                refused can be skipped. Audited with the reason. Nobody can take it back.
                """)

        @Argument(help: "The event's id, as `makegood endpoints list --endpoint` prints it.")
        var event: String
        @Option(help: "The endpoint, as APP/NAME.")
        var endpoint: EndpointName
        @Option(help: "Why, for the audit.")
        var reason: String

        func validate() throws {
            if UUID(uuidString: event) == nil { throw ValidationError("the event must be a UUID") }
            guard (1...500).contains(reason.count), !reason.allSatisfy(\.isWhitespace) else {
                throw ValidationError("--reason must say why, in at most 500 characters")
            }
        }

        func run() async throws {
            guard let event = UUID(uuidString: event) else { throw ExitCode(2) }
            let isSkipped = try await Connections.withDatabase("endpoints") { database in
                try await database.run(
                    Statements.skipEvent,
                    (endpoint: endpoint.key.id, event: event, reason: reason, actor: Connections.actor)
                ).first ?? false
            }
            print(isSkipped ? "skipped" : "\(endpoint) has refused no such event, or has taken it since")
            if !isSkipped { throw ExitCode(1) }
        }
    }

    /// The refused events that a list shows at most.
    fileprivate static let listMax = 100
}

/// An endpoint as a person names it: `APP/NAME`.
struct EndpointName: ExpressibleByArgument, CustomStringConvertible, Sendable {
    let key: EndpointKey

    init?(argument: String) {
        // Neither part holds a slash.
        let parts = argument.split(separator: "/", omittingEmptySubsequences: false)
        guard parts.count == 2, !parts[0].isEmpty, !parts[1].isEmpty else { return nil }
        key = EndpointKey(appID: String(parts[0]), name: String(parts[1]))
    }

    var description: String { "\(key.appID)/\(key.name)" }

    func endUnknown() throws {
        print("no dispatcher has had an endpoint \(self) yet: makegood endpoints list names them")
        throw ExitCode(1)
    }
}

extension EndpointStanding {
    fileprivate var line: String {
        var parts = ["\(appID)/\(name): \(state.rawValue)" + (reason.isEmpty ? "" : " (\(reason))")]
        if !isDefined { parts.append("in no configuration since \(seenAt.rfc3339)") }
        if let failingSince { parts.append("since \(failingSince.rfc3339)") }
        if state == .failing, let probeAt { parts.append("tried again at \(probeAt.rfc3339)") }
        let users =
            waitingStreams > Self.countedMax ? "more than \(Self.countedMax) users" : waitingStreams.counted("user")
        parts.append(
            waitingStreams == 0
                ? "nothing waits" : "\(waitingEvents.counted("event waits", "events wait")) for \(users)")
        if let oldestAt { parts.append("the oldest since \(oldestAt.rfc3339)") }
        if parkedStreams > 0 { parts.append("\(parkedStreams.counted("user is", "users are")) parked") }
        if failures > 0, let lastError { parts.append("last: \(lastError)") }
        return parts.joined(separator: ", ")
    }
}

extension UndeliveredEvent {
    fileprivate var line: String {
        let next = dueAt.map { "tried again at \($0.rfc3339)" } ?? "parked"
        return "\(eventID.text) \(type) of \(userID.isEmpty ? "nobody" : userID): \(reason), "
            + "\(attempts.counted("attempt")) since \(failingSince.rfc3339), \(next), "
            + "\(eventsBehind.counted("later event waits", "later events wait"))"
    }
}

extension JSON {
    struct Endpoints: Encodable {
        let endpoints: [Endpoint]
        let undelivered: [Undelivered]?
    }

    struct Endpoint: Encodable {
        let appId: String
        let name: String
        let state: String
        let reason: String?
        let failures: Int
        let failingSince: String?
        let probeAt: String?
        let lastStatus: Int?
        let lastError: String?
        let succeededAt: String?
        let isDefined: Bool
        let waitingUsers: Int
        let waitingEvents: Int
        let parkedUsers: Int
        let oldestAt: String?
        let lagSeconds: Double

        init(_ standing: EndpointStanding) {
            (appId, name, state) = (standing.appID, standing.name, standing.state.rawValue)
            reason = standing.reason.isEmpty ? nil : standing.reason
            (failures, failingSince, probeAt) = (
                standing.failures, standing.failingSince?.rfc3339, standing.probeAt?.rfc3339
            )
            (lastStatus, lastError, succeededAt) = (
                standing.lastStatus, standing.lastError, standing.succeededAt?.rfc3339
            )
            isDefined = standing.isDefined
            (waitingUsers, waitingEvents) = (standing.waitingStreams, standing.waitingEvents)
            (parkedUsers, oldestAt, lagSeconds) = (
                standing.parkedStreams, standing.oldestAt?.rfc3339, standing.lagSeconds
            )
        }
    }

    struct Undelivered: Encodable {
        let eventId: String
        let type: String
        let userId: String?
        let sequence: Int
        let at: String
        let attempts: Int
        let failingSince: String
        let dueAt: String?
        let parkedAt: String?
        let reason: String
        let eventsBehind: Int

        init(_ event: UndeliveredEvent) {
            (eventId, type, sequence) = (event.eventID.text, event.type, event.sequence)
            userId = event.userID.isEmpty ? nil : event.userID
            (at, attempts, failingSince) = (event.at.rfc3339, event.attempts, event.failingSince.rfc3339)
            (dueAt, parkedAt, reason) = (event.dueAt?.rfc3339, event.parkedAt?.rfc3339, event.reason)
            eventsBehind = event.eventsBehind
        }
    }
}
