import ArgumentParser
import Commands
import Encoding
import Foundation
import Ledger
import Purchases
import Settings
import Support

/// `makegood support refund-request`: Apple's questions about refunds, until they are answered.
struct RefundRequestCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "refund-request", abstract: "See and change what Apple is told about refunds.",
        discussion: """
            Apple asks how much of a purchase was used when its customer wants the money back, and takes an answer for \
            12 hours. Makegood answers by the rules of the app (refunds) after answerAfter, and only if the user has \
            agreed. Until then an answer can be changed here. An ID is that of a request, of its case, or Apple's \
            transaction id.
            """,
        subcommands: [List.self, Show.self, Edit.self, SendNow.self, Withhold.self])

    struct List: AsyncParsableCommand {
        static let configuration = CommandConfiguration(abstract: "List the requests, the newest first.")

        @Option(help: "Only this app.")
        var app: String?
        @Option(help: "open (default), answered, unanswered or all.")
        var state = "open"
        @Flag(help: "Print JSON.")
        var json = false

        func validate() throws {
            guard ["open", "answered", "unanswered", "all"].contains(state) else {
                throw ValidationError("--state must be open, answered, unanswered or all")
            }
        }

        func run() async throws {
            let requests = try await Connections.withDatabase("support", isReadOnly: true) { database in
                try await RefundRequestEditor(database: database, actor: Connections.actor)
                    .list(app: app, state: state == "all" ? nil : state)
            }
            let lines = requests.map(\.line)
            if json { return try JSON.print(lines) }
            let names = [
                "askedAt", "id", "app", "transactionId", "productId", "state", "reason", "hoursLeft", "editedBy",
            ]
            for line in lines { print(names.map { line[$0] ?? "-" }.joined(separator: "  ")) }
            if lines.isEmpty { print("no request") }
            if lines.count == RefundRequestEditor.listMax { print("… and more") }
        }
    }

    struct Show: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Show the requests of a case, and what Apple would be told now. Needs MAKEGOOD_CONFIG.")

        @Argument(help: "A request's or a case's UUID, or Apple's transaction id.")
        var id: String
        @Flag(help: "Print JSON.")
        var json = false

        func run() async throws {
            let configuration = try Settings().loadConfiguration()
            let lines = try await Connections.withDatabase("support", isReadOnly: true) { database in
                let editor = RefundRequestEditor(database: database, actor: Connections.actor)
                var lines: [[String: String]] = []
                for listed in try await editor.requests(of: id) {
                    var line = listed.line
                    if listed.state == "open", let policy = configuration.apps[listed.request.appID]?.policy,
                        let now = try await editor.answer(to: listed, by: policy)
                    {
                        line.merge(now.answer.line) { $1 }
                        line["user"] = now.facts.userID
                        line["consented"] = "\(now.facts.hasConsent)"
                    }
                    lines.append(line)
                }
                return lines
            }
            if lines.isEmpty {
                Terminal.tell("\(RefundRequestEditor.Refusal.unknown)")
                throw ExitCode(1)
            }
            if json { return try JSON.print(lines) }
            for line in lines {
                for (name, value) in line.sorted(by: { $0.key < $1.key }) { print("\(name): \(value)") }
                print("")
            }
        }
    }

    struct Edit: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Change what Apple is told, until it is sent. Needs MAKEGOOD_CONFIG. Audited.",
            discussion: "What is left out stays as an earlier edit has it, or as the rules of the app say.")

        @Argument(help: "A request's or a case's UUID, or Apple's transaction id.")
        var id: String
        @Option(help: "How much of the purchase was used, 0 to 100.")
        var percentage: Double?
        @Option(help: "DECLINE, GRANT_FULL, GRANT_PRORATED or NONE.")
        var preference: RefundStatement.Preference?
        @Option(
            help: """
                DELIVERED, UNDELIVERED_QUALITY_ISSUE, UNDELIVERED_WRONG_ITEM, UNDELIVERED_SERVER_OUTAGE or \
                UNDELIVERED_OTHER.
                """)
        var delivery: RefundStatement.Delivery?

        func validate() throws {
            if percentage == nil, preference == nil, delivery == nil { throw ValidationError("nothing is changed") }
            if let percentage, !(0...100).contains(percentage) {
                throw ValidationError("--percentage must be 0 to 100")
            }
        }

        func run() async throws {
            try await RefundRequestCommand.edit(
                id,
                RefundEdit(
                    delivery: delivery, percentage: percentage.map { Int(($0 * 1000).rounded()) },
                    preference: preference)
            ) { "changed; it is sent at \($0.dueAt?.rfc3339 ?? "once")" }
        }
    }

    struct SendNow: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            commandName: "send-now",
            abstract: "Send the answer at once, if the user has agreed. Needs MAKEGOOD_CONFIG. Audited.")

        @Argument(help: "A request's or a case's UUID, or Apple's transaction id.")
        var id: String

        func run() async throws {
            try await RefundRequestCommand.edit(id, RefundEdit(sendNow: true)) { _ in "a worker sends it now" }
        }
    }

    struct Withhold: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract:
                "Do not answer. An edit or send-now before its time takes that back. Needs MAKEGOOD_CONFIG. Audited.")

        @Argument(help: "A request's or a case's UUID, or Apple's transaction id.")
        var id: String

        func run() async throws {
            try await RefundRequestCommand.edit(id, RefundEdit(withhold: true)) { _ in "Apple will not be answered" }
        }
    }

    /// Prints the result of an edit. Exit code 1 where the edit was not taken.
    private static func edit(
        _ id: String, _ change: RefundEdit, _ text: (ListedRefundRequest) -> String
    ) async throws {
        let policies = try Settings().loadConfiguration().apps.mapValues(\.policy)
        do {
            let edited = try await Connections.withDatabase("support") { database in
                try await RefundRequestEditor(database: database, actor: Connections.actor).edit(
                    id, change, policies: policies)
            }
            print(text(edited))
        } catch let refusal as RefundRequestEditor.Refusal {
            Terminal.tell("\(refusal)")
            throw ExitCode(1)
        }
    }
}

extension ListedRefundRequest {
    /// The JSON of a request as a command prints it, without members that are not known.
    fileprivate var line: [String: String] {
        let hoursLeft = (RefundRequest.answerWithin - age) / 3600
        let values: [String: String?] = [
            "id": request.notificationID.text, "case": caseID.text, "app": request.appID,
            "environment": request.environment, "transactionId": request.transactionID, "productId": productID,
            "requestReason": request.reason, "askedAt": request.askedAt.rfc3339, "state": state, "reason": reason,
            "dueAt": dueAt?.rfc3339, "hoursLeft": state == "open" ? String(format: "%.1f", hoursLeft) : nil,
            "attempt": "\(attempt)", "edit": edit?.text, "editedBy": editedBy, "answer": answer,
            "apiVersion": apiVersion.map { "\($0)" }, "httpStatus": httpStatus.map { "\($0)" },
            "code": code.map { "\($0)" }, "endedAt": endedAt?.rfc3339, "userReportedAt": reportedAt?.rfc3339,
        ]
        return values.compactMapValues { $0 }
    }
}

extension RefundEdit {
    fileprivate var text: String {
        [
            delivery.map { "delivery \($0.rawValue)" }, percentage.map { "percentage \(Double($0) / 1000)" },
            preference.map { "preference \($0.rawValue)" }, withhold == true ? "withhold" : nil,
            sendNow == true ? "send now" : nil,
        ].compactMap(\.self).joined(separator: ", ")
    }
}

extension RefundAnswer {
    fileprivate var line: [String: String] {
        switch self {
        case .silence(let reason): return ["now": "no answer, \(reason.rawValue)"]
        case .send(let statement):
            let parts = [
                statement.delivery.rawValue, statement.percentage.map { "\(Double($0) / 1000) % used" },
                statement.preference == .unsaid ? nil : statement.preference.rawValue,
            ]
            return ["now": parts.compactMap(\.self).joined(separator: ", ")]
        }
    }
}

extension RefundStatement.Preference: ExpressibleByArgument {}
extension RefundStatement.Delivery: ExpressibleByArgument {}
