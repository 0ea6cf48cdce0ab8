import ArgumentParser
import Commands
import Encoding
import Ledger
import Postgres
import Settings

struct UsersCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "users",
        abstract: "Erase a user's id and keep what was paid; find the key that tables hold instead of an id.",
        discussion: "Needs MAKEGOOD_CONFIG, the file that the services use, for its `users` section.",
        subcommands: [Show.self, Erase.self, Readmit.self])

    struct User: ParsableArguments {
        @Argument(help: "The user's id, as the app knows it.")
        var id: String
        @Option(help: "The app.")
        var app: String
    }

    struct Show: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Print how the tables name a user, and how much stands there.")

        @OptionGroup var user: User

        func run() async throws {
            try await UsersCommand.withErasure(of: user) { erasure, name in
                let (standing, traces) = try await erasure.look(name)
                print("\(name.key): \(standing), \(traces.text)")
            }
        }
    }

    struct Erase: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Erase a user's id, and what was sent beside ended purchases. Grants and transactions stay.",
            discussion: """
                With users.protect the events of the user carry the user's key and `erased: true` from then on, and a later \
                post of the same user is granted under the same key without storing the id again (`users readmit` ends \
                that). Without it a random tombstone takes the id's place in every table: a later post of the same \
                user stores the id again, and another user owns the purchases. An id that was merged into another \
                account is erased with that account, never alone. Nobody can take it back: on a terminal the command \
                asks first, elsewhere it needs --yes.
                """)

        @OptionGroup var user: User
        @Flag(help: "Only say what is there.")
        var dryRun = false
        @Flag(help: "Erase without asking.")
        var yes = false

        func run() async throws {
            try await UsersCommand.withErasure(of: user) { erasure, name in
                if let account = try await erasure.account(of: name) {
                    print("part of the account \(account): erase that one, and this id goes with it")
                    throw ExitCode(1)
                }
                let (standing, traces) = try await erasure.look(name)
                if standing == .unknown {
                    print("no such user in \(user.app)")
                    throw ExitCode(1)
                }
                guard !dryRun else { return print("\(standing), \(traces.text): would be erased") }
                try confirm("erase \(name.key) of \(user.app): \(standing), \(traces.text)?")
                _ = try await erasure.erase(name)
                print("erased; \(traces.text) stay, without the id")
                if standing != .clear, traces.openReceipts > 0 {
                    print("what was sent beside the open ones stays until they end: erase again then")
                }
            }
        }

        private func confirm(_ question: String) throws {
            switch yes ? true : Terminal.confirms(question) {
            case true: return
            case false:
                Terminal.tell("nothing was erased")
                throw ExitCode(1)
            case nil:
                Terminal.tell("nothing was erased: say --yes, or run it on a terminal, where it asks")
                throw ExitCode.unusableInput
            }
        }
    }

    struct Readmit: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Store the id of an erased user again, who is a customer again.")

        @OptionGroup var user: User

        func run() async throws {
            try await UsersCommand.withErasure(of: user) { erasure, _ in
                guard try await erasure.readmit(user.id, app: user.app) else {
                    print("no erased user of that id in \(user.app)")
                    throw ExitCode(1)
                }
                print("readmitted")
            }
        }
    }

    fileprivate static func withErasure(
        of user: User, _ body: (UserErasure, UserName) async throws -> Void
    ) async throws {
        let configuration = try Settings().loadConfiguration()
        guard configuration.apps[user.app] != nil else { throw ValidationError("--app names no app of the file") }
        try await Connections.withDatabase("users", patience: .seconds(3600)) { database in
            try await UserProtection.check(configuration.userKeys, in: database)
            let erasure = UserErasure(database: database, keys: configuration.userKeys, actor: Connections.actor)
            try await body(erasure, erasure.name(of: user.id, app: user.app))
        }
    }
}

extension Statements.UserTraces {
    fileprivate var text: String {
        let counts = [
            grants.counted("grant"), orders.counted("order"), tokens.counted("token"), reports.counted("report"),
            imported.counted("imported purchase"),
        ]
        return "\(receipts.counted("receipt")) (\(openReceipts) open), \(counts.joined(separator: ", "))"
    }
}
