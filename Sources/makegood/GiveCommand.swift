import ArgumentParser
import Commands
import Ledger
import Purchases
import Settings
import Support

extension SupportCommand {
    struct Give: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Give one held purchase to a user, because a person found out whose it is.",
            discussion: """
                For what is held for one of: \(Reason.givenByPerson.map(\.rawValue).joined(separator: ", ")); and for \
                \(Reason.idCollision.rawValue), if the other purchase is of another environment. It is \
                written down and judged at once; a worker gives it as it gives everything: once, with the goods of an \
                order of the user or of the day it was bought, and it waits on for what else it lacks. Said again, the \
                latest word counts until it is granted. Refused, with exit code 1, where it is granted, imported, \
                refunded, shared, not verified yet, or unknown. Apple is told where the app writes tokens back. Needs \
                MAKEGOOD_CONFIG. Audited.
                """)

        static let becauseMax = 500

        @Option(help: "The app.")
        var app: String
        @Option(help: "Apple's id of the purchase.")
        var transaction: String
        @Option(help: "The user's id, as the app knows it.")
        var user: String
        @Option(help: "The item, where the product is sold as several.")
        var item: String?
        @Option(help: "Why, for the audit: the ticket, what was looked at.")
        var because: String
        @Flag(help: "Only say whether it would be given; write nothing.")
        var dryRun = false
        @Flag(help: "Print JSON: outcome, the reason why it is held, and the sentence.")
        var json = false

        private struct Answer: Encodable {
            let outcome: String
            let reason: String?
            let dryRun: Bool
            let text: String
        }

        func validate() throws {
            guard (1...Self.becauseMax).contains(because.count) else {
                throw ValidationError("--because must have 1 to \(Self.becauseMax) characters")
            }
            guard !user.isEmpty else { throw ValidationError("--user must name somebody") }
        }

        func run() async throws {
            let configuration = try Settings().loadConfiguration()
            guard let section = configuration.apps[app] else {
                throw ValidationError("--app names no app of the file")
            }
            guard section.policy.mode == .live else {
                try show("shadow", nil, "\(app) is in shadow: its goods are another system's to give")
                throw ExitCode(1)
            }
            guard !configuration.placeholders.contains(user) else {
                throw ValidationError("--user is a placeholder and names nobody (users.placeholders)")
            }
            try await Connections.withDatabase("support") { database in
                try await UserProtection.check(configuration.userKeys, in: database)
                let supportDecision = Statements.SupportDecision(
                    appID: app, transactionID: transaction,
                    userID: configuration.userKeys?.key(of: user, app: app) ?? user, item: item, because: because,
                    canAsk: section.serverAPI != nil, isWrittenBack: section.policy.writesBackTokens,
                    isDryRun: dryRun)
                let answer = try await Repairs(database: database, actor: Connections.actor).give(supportDecision)
                try show(answer.outcome.rawValue, answer.reason?.rawValue, answer.text(supportDecision))
                if !answer.isDecided { throw ExitCode(1) }
            }
        }

        private func show(_ outcome: String, _ reason: String?, _ text: String) throws {
            guard json else { return print(text) }
            try JSON.print(Answer(outcome: outcome, reason: reason, dryRun: dryRun, text: text))
        }
    }
}
