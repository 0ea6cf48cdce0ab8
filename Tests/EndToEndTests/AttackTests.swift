import AppStoreSimulator
import Crypto
import Foundation
import Purchases
import Testing

/// A post by somebody who wants goods for nothing, and what must become of it.
private struct Attack: Sendable {
    /// What the answer to the thief says.
    struct Answer: Equatable, CustomStringConvertible {
        var state = "rejected"
        var reason: String
        var safeToFinish = false

        var description: String { "\(state) \(reason), safeToFinish \(safeToFinish)" }
    }

    let name: String
    let expected: Answer
    var app = "game"
    /// Whether the customer posts the same proof. The first to post it is told to be its owner, so this attack runs
    /// only with the thief second.
    var isCaptured = false
    /// Makes the post: the proof, or the ids, without a user.
    let post: @Sendable (Setup) async throws -> Client.Post

    /// What an attack may use: the App Store, and a customer who paid and got the goods.
    struct Setup: Sendable {
        let appStore: RunningSimulator
        let victim: Sale
    }
}

extension Attack {
    /// A signed transaction with one defect.
    private static func forged(_ name: String, _ kind: Forgery.Kind, _ reason: String) -> Attack {
        Attack(name: name, expected: Answer(reason: reason)) { setup in
            let request = ForgeryRequest(kind: kind, app: "game", productId: ConfigurationFile.coins)
            return Client.Post(signedTransaction: try setup.appStore.store.forge(request))
        }
    }

    /// The table. `puzzle` serves Production only; `game` serves Production and Sandbox.
    static let all: [Attack] = [
        // The verifier decides which algorithm counts, not the header (RFC 8725 section 3.1).
        forged("alg none, no signature", .algorithmNone, "algorithm"),
        forged("alg HS256, the public key as secret", .algorithmHMAC, "algorithm"),
        forged("alg RS256", .algorithmRSA, "algorithm"),
        forged("alg ES384", .algorithmP384, "algorithm"),
        // Certificates: only Apple's, only those made for this purpose, only while they are valid.
        forged("a foreign root", .foreignRoot, "untrusted_root"),
        forged("a leaf without Apple's marker", .missingLeafMarker, "missing_oid"),
        forged("an intermediate without Apple's marker", .missingIntermediateMarker, "missing_oid"),
        forged("an intermediate that is no authority", .plainIntermediate, "certificate"),
        forged("a chain of two", .chainLength, "chain_length"),
        forged("a chain of four", .longChain, "chain_length"),
        forged("a leaf that had ended when it signed", .expiredLeaf, "expired"),
        forged("junk as a certificate", .junkCertificate, "certificate"),
        // The signature covers exactly these bytes.
        forged("another payload under a good signature", .swappedPayload, "signature"),
        forged("one bit of the signature", .signature, "signature"),
        forged("the signature in DER", .signatureInDER, "signature"),
        // Genuine, but of another app or environment.
        forged("another app's purchase", .wrongBundle, "wrong_app"),
        Attack(name: "another app's receipt", expected: Answer(reason: "wrong_app")) { setup in
            let sale = try await setup.appStore.sell(ConfigurationFile.riddle, app: "puzzle")
            return Client.Post(receipt: sale.receipt)
        },
        Attack(
            name: "a sandbox purchase in a production-only app", expected: Answer(reason: "wrong_environment"),
            app: "puzzle"
        ) { setup in Client.Post(signedTransaction: try await setup.sandboxSale().signedTransaction) },
        Attack(
            name: "a sandbox receipt in a production-only app", expected: Answer(reason: "wrong_environment"),
            app: "puzzle"
        ) { setup in Client.Post(receipt: try await setup.sandboxSale().receipt) },
        Attack(name: "data of Xcode in production", expected: Answer(reason: "unsigned")) { _ in
            Client.Post(signedTransaction: try xcodeTransaction())
        },
        // Genuine and of our app, but another user's. Nothing but the first post speaks for the owner, so that either
        // user may be the thief: for a day the second one is not told to finish it (S14).
        Attack(
            name: "another user's signed transaction",
            expected: Answer(state: "already_granted", reason: "owned_by_another_user"), isCaptured: true
        ) { setup in Client.Post(signedTransaction: setup.victim.signedTransaction) },
        Attack(
            name: "another user's receipt",
            expected: Answer(state: "already_granted", reason: "owned_by_another_user"), isCaptured: true
        ) { setup in Client.Post(receipt: setup.victim.receipt) },
        Attack(
            name: "a refunded purchase, by the proof of before",
            expected: Answer(reason: "refunded", safeToFinish: true)
        ) { setup in
            let sale = try await setup.appStore.sell {
                $0.purchaseDate = milliseconds(secondsAhead: -7300)
                $0.signedDate = milliseconds(secondsAhead: -7200)
            }
            try setup.appStore.store.refund(sale.purchase.transactionId)
            return Client.Post(signedTransaction: sale.signedTransaction)
        },
        Attack(
            name: "the bare id of another customer's purchase without a token",
            expected: Answer(state: "held", reason: "possession_missing")
        ) { setup in
            Client.Post(transactionId: try await setup.appStore.sell().purchase.transactionId)
        },
    ]

    /// What StoreKit in Xcode signs: one certificate of its own (AppleFacts 1.1).
    private static func xcodeTransaction() throws -> String {
        let header = #"{"alg":"ES256","kid":"Apple_Xcode_Key","typ":"JWT","x5c":["MIIB"]}"#
        let payload =
            #"{"transactionId":"0","originalTransactionId":"0","bundleId":"com.example.game","#
            + #""productId":"\#(ConfigurationFile.coins)","type":"Consumable","quantity":1,"environment":"Xcode","#
            + #""purchaseDate":\#(milliseconds()).25,"signedDate":\#(milliseconds()).25}"#
        let signed = [header, payload].map { base64URL($0.utf8) }.joined(separator: ".")
        let signature = try P256.Signing.PrivateKey().signature(for: Data(signed.utf8))
        return "\(signed).\(base64URL(signature.rawRepresentation))"
    }

    private static func base64URL(_ bytes: some Sequence<UInt8>) -> String {
        Data(bytes).base64EncodedString().replacing("+", with: "-").replacing("/", with: "_").replacing("=", with: "")
    }
}

extension Attack.Setup {
    fileprivate func sandboxSale() async throws -> Sale {
        try await appStore.sell(ConfigurationFile.riddle, app: "puzzle") { $0.environment = .sandbox }
    }
}

extension EndToEnd {
    /// What must not be granted, in one table.
    @Suite struct Attacks {
        /// Goal: no attack of the table is granted anything, each ends for its own reason, and only a proof that has
        /// nothing left to give is safe to finish (P18, P12, P10).
        /// Method: a customer buys and is granted; then a thief posts every attack to ingest, with workers, a database
        /// and an App Store behind it. Each answer is the table's, and none has goods. In the end the customer's grant
        /// is the only one, and the feed tells the thief only that the claim is disputed, once.
        ///
        /// The test runs once with the thief second and once with the thief first. In the latter run the customer posts
        /// last, and is granted all the same.
        @Test(arguments: [false, true]) func nothingIsGrantedToAThief(isFirst: Bool) async throws {
            #expect(Set(Attack.all.map(\.name)).count == Attack.all.count)
            try await System.run { system in
                try system.configure { $0.apps[1].environments = ["Production"] }
                try await system.startAll()
                let victim = try await system.appStore.sell()
                system.owe(victim, to: "victim")
                func pay() async throws {
                    #expect(try await system.submit(victim, user: "victim", wait: 20).state == "granted")
                }
                if !isFirst { try await pay() }
                let setup = Attack.Setup(appStore: system.appStore, victim: victim)
                for attack in Attack.all where !isFirst || !attack.isCaptured {
                    var post = try await attack.post(setup)
                    post.appId = attack.app
                    post.userId = "thief"
                    let answer = try await system.submit(post, wait: 20)
                    let found = Attack.Answer(
                        state: answer.state, reason: answer.reason ?? "", safeToFinish: answer.safeToFinish ?? true)
                    #expect(found == attack.expected, "\(attack.name)")
                    #expect(answer.transactions.allSatisfy { $0["goods"] == nil }, "\(attack.name)")
                    #expect(answer.transactions.allSatisfy { $0["owner"] as? String != "you" }, "\(attack.name)")
                }
                if isFirst { try await pay() }
                #expect(
                    try await system.texts("select transaction_id || ' ' || user_id from grants")
                        == ["\(victim.purchase.transactionId) victim"])
                let told = try await system.client.events().map { "\($0["type"] ?? "") \($0["userId"] ?? "")" }
                let disputes = isFirst ? [] : ["ownership.disputed thief", "ownership.disputed victim"]
                #expect(told.sorted() == disputes + ["purchase.granted victim"])
            }
        }

        /// Goal: guessing ids tells nothing and costs nothing: no answer says whether an id is a purchase, each user
        /// may guess twenty a day, and Apple is not asked once (Ownership, note 5).
        /// Method: a hundred users post a hundred ids each, one in ten of them a real purchase of somebody else, paid
        /// or granted. Each user's first twenty are accepted, the rest answer 429 with Retry-After, and a known id
        /// posted again is no error. In the end all accepted ones look the same, and Apple saw no call but those for
        /// the owner.
        @Test(.timeLimit(.minutes(4))) func tenThousandGuessedIdsTellNothing() async throws {
            try await System.run { system in
                try await system.startAll()
                let sales = try await system.appStore.sell(100)
                let granted = sales.prefix(50)
                system.owe(Array(granted), to: "victim")
                for sale in granted { try await system.submit(sale, user: "victim") }
                try await system.settleDebts()
                let calls = system.appStore.calls().count

                @Sendable func id(_ user: Int, _ number: Int) -> String {
                    number.isMultiple(of: 10)
                        ? sales[(user + number) % sales.count].purchase.transactionId
                        : "77\(1_000_000 + user * 1000 + number)"
                }
                let accepted = try await withThrowingTaskGroup(of: [(id: String, isReal: Bool)].self) { group in
                    for user in 0..<100 {
                        group.addTask { try await Self.guess(user, 100, id, in: system) }
                    }
                    return try await group.reduce(into: []) { $0 += $1 }
                }
                #expect(accepted.count == 2000)
                #expect(accepted.count(where: \.isReal) == 200)
                try await system.wait(.held, 2000, within: .seconds(120))
                #expect(system.appStore.calls().count == calls)
                var looks: Set<String> = []
                for (index, guess) in accepted.enumerated() where guess.isReal || index.isMultiple(of: 20) {
                    var answer = try await system.client.receipt(guess.id).json
                    for field in ["id", "receivedAt", "nextAttemptAt"] { answer[field] = nil }
                    let transactions = (answer["transactions"] as? [[String: Any]] ?? []).map { transaction in
                        transaction.filter { $0.key != "transactionId" }
                    }
                    answer["transactions"] = transactions
                    let text = try JSONSerialization.data(withJSONObject: answer, options: [.sortedKeys])
                    looks.insert(String(decoding: text, as: UTF8.self))
                }
                #expect(looks.count == 1, "\(looks)")
                #expect(try await system.count("select count(*) from grants") == granted.count)
            }
        }

        /// Posts one user's guesses, one after the other, and returns those that were accepted.
        private static func guess(
            _ user: Int, _ count: Int, _ transactionID: @Sendable (Int, Int) -> String, in system: System
        ) async throws -> [(id: String, isReal: Bool)] {
            var accepted: [(id: String, isReal: Bool)] = []
            for number in 0..<count {
                let post = Client.Post(userId: "guesser-\(user)", transactionId: transactionID(user, number))
                let isLate = accepted.count == 20
                let answer = isLate ? try await system.client.post(post) : try await system.submit(post)
                guard isLate else {
                    accepted.append((answer.id, number.isMultiple(of: 10)))
                    continue
                }
                #expect(answer.status == 429)
                #expect(answer.header("retry-after") != nil)
            }
            let first = Client.Post(userId: "guesser-\(user)", transactionId: transactionID(user, 0))
            #expect(try await system.client.post(first).id == accepted.first?.id)
            return accepted
        }
    }
}
