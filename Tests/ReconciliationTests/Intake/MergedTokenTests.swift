import Encoding
import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger

/// Goal: a token of a guest who became part of an account reads the guest's data and nothing of the account; the
/// account's token and service keys read both. Method: real HTTP on a real database, verdicts written as workers write
/// them; every route that reads, by each caller.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(3))) struct MergedTokenTests {
    private static let product = "com.example.game.coins6"

    /// A user with a receipt that was granted, and an order.
    private struct User {
        let id: String
        let receipt: String
        let transaction: String
        let order: String

        init(_ name: String, in intake: RunningIntake) async throws {
            id = "\(name)-\(UUID().uuidString.prefix(8))"
            transaction = "t-\(id)"
            let body = #"{"userId":"\#(id)","signedTransaction":"\#(IntakeFixture.signedTransaction())"}"#
            receipt = try Self.id(try await intake.post(body))
            order = try Self.id(
                try await intake.order(
                    #"{"userId":"\#(id)","productId":"\#(product)","transactionId":"\#(transaction)"}"#))
            try await Self.grant(transaction, by: receipt, in: intake)
        }

        /// Grants a purchase as a worker writes it.
        static func grant(_ transaction: String, by receipt: String, in intake: RunningIntake) async throws {
            let receiptID = try #require(UUID(uuidString: receipt))
            let row = try #require(try await intake.ledger.fetch(receiptID))
            let entry = Verdict.Entry.purchase(transaction) {
                $0.purchasedAt = .now.addingTimeInterval(-1)
                $0.signedAt = $0.purchasedAt
            }
            let verdict = Verdict(
                receiptID: row.id, attempt: row.attempt, appID: row.appID,
                claim: Claim(userID: row.userID, hasPossession: true, receivedAt: row.receivedAt),
                decisions: .transactions([entry]), dueIn: .seconds(600))
            #expect(try await intake.ledger.settle(verdict)?.state == .granted)
        }

        static func id(_ answer: RunningIntake.Answer) throws -> String {
            guard case .string(let id)? = answer["id"] else { throw Missing(answer: answer.text) }
            return id
        }

        var paths: [String] { ["/v1/receipts/\(receipt)", "/v1/orders/\(order)"] }
        var timelines: [String] { paths.map { "\($0)/explain" } + ["/v1/transactions/\(transaction)/explain"] }
        /// One list of each kind, with a text that only this user's list contains.
        var lists: [(path: String, word: String)] {
            [("/v1/users/\(id)/purchases", transaction), ("/v1/orders?userId=\(id)", order)]
        }
    }

    private struct Missing: Error {
        let answer: String
    }

    @Test("by id: a guest's token reads the guest's alone, the account's token and keys read both")
    func byID() async throws {
        try await TestGateway.run { intake, gateway in
            let (guest, account) = (try await User("guest", in: intake), try await User("account", in: intake))
            try await Self.merge(guest, into: account, in: intake)
            let (guests, accounts) = (try gateway.token(guest.id), try gateway.token(account.id))
            for (user, key, status) in [
                (guest, guests, 200), (account, guests, 404), (guest, accounts, 200), (account, accounts, 200),
            ] {
                for path in user.paths + user.timelines {
                    #expect(try await intake.get(path, key: key).status == status, "\(path)")
                }
                let report = try await intake.send(
                    "POST", "/v1/orders/\(user.order)/reports", key: key, body: #"{"kind":"error"}"#)
                #expect((report.status == 404) == (status == 404), "\(report.text)")
            }
            for user in [guest, account] {
                for path in user.paths { #expect(try await intake.get(path).status == 200) }
                for path in user.timelines {
                    #expect(try await intake.get(path, key: IntakeFixture.supportKey).status == 200)
                }
            }
        }
    }

    @Test("lists and sums: a guest's token reads the guest's alone, the account's token and keys read both")
    func lists() async throws {
        try await TestGateway.run { intake, gateway in
            let (guest, account) = (try await User("guest", in: intake), try await User("account", in: intake))
            try await Self.merge(guest, into: account, in: intake)
            let month = Date.now.rfc3339.prefix(7)
            for (reader, key, isWhole) in [
                (guest, try gateway.token(guest.id), false), (account, try gateway.token(account.id), true),
                (guest, IntakeFixture.key, true), (account, IntakeFixture.key, true),
            ] {
                for (index, list) in reader.lists.enumerated() {
                    let answer = try await intake.get(list.path, key: key)
                    #expect(answer.status == 200 && answer.text.contains(list.word), "\(list.path): \(answer.text)")
                    for user in [guest, account] where user.id != reader.id {
                        #expect(answer.text.contains(user.lists[index].word) == isWhole, "\(list.path)")
                    }
                }
                let spend = try await intake.get("/v1/users/\(reader.id)/spend?month=\(month)", key: key)
                #expect(spend.text.contains(#""purchases":\#(isWhole ? 2 : 1),"#), "\(spend.text)")
            }
        }
    }

    @Test("what the guest's app still posts is taken, and read by the guest; the account's order is not told")
    func posts() async throws {
        try await TestGateway.run { intake, gateway in
            let (guest, account) = (try await User("guest", in: intake), try await User("account", in: intake))
            try await Self.merge(guest, into: account, in: intake)
            let token = try gateway.token(guest.id)
            let posted = try await intake.post(
                #"{"signedTransaction":"\#(IntakeFixture.signedTransaction())"}"#, key: token)
            #expect(posted.status == 202)
            #expect(try await intake.get("/v1/receipts/\(try User.id(posted))", key: token).status == 200)
            func order(_ transaction: String) async throws -> RunningIntake.Answer {
                try await intake.order(
                    #"{"productId":"\#(Self.product)","transactionId":"\#(transaction)"}"#, key: token)
            }
            let own = try await order(guest.transaction)
            #expect(try own.status == 200 && User.id(own) == guest.order)
            let others = try await order(account.transaction)
            #expect(others.status == 409 && others["code"] == .string("order_of_account"))
            #expect(!others.text.contains(account.order))
        }
    }

    @Test(
        "a guest's order lists no receipt of the account to the guest's token, and names none of the account's orders")
    func receiptsOfAnOrder() async throws {
        try await TestGateway.run { intake, gateway in
            let (guest, account) = (try await User("guest", in: intake), try await User("account", in: intake))
            func post(by user: User) async throws -> String {
                let proof = IntakeFixture.signedTransaction()
                return try User.id(
                    try await intake.post(
                        #"{"userId":"\#(user.id)","orderId":"\#(guest.order)","signedTransaction":"\#(proof)"}"#))
            }
            let (guests, accounts) = (try await post(by: guest), try await post(by: account))
            try await Self.merge(guest, into: account, in: intake)
            // The guest's receipt was granted by an order of the account.
            let bound = "t-bound-\(guest.id)"
            try await intake.ledger.database.run(
                Statement<Void, Void>(
                    "test.bind",
                    """
                    with granted as (
                      insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id,
                        quantity, goods, binding_source, order_id)
                      select '\(bound)', '\(bound)', app_id, 'Production', user_id, '\(guests)'::uuid, product_id, 1, '[]',
                        'named_order', id
                      from orders where id = '\(account.order)' returning transaction_id)
                    insert into outcomes (receipt_id, transaction_id, state)
                    select '\(guests)'::uuid, transaction_id, 'granted' from granted
                    """))
            for (token, isWhole) in [
                (try gateway.token(guest.id), false), (try gateway.token(account.id), true), (IntakeFixture.key, true),
            ] {
                let answer = try await intake.get("/v1/orders/\(guest.order)", key: token)
                #expect(answer.status == 200 && answer.text.contains(guests) && answer.text.contains(bound))
                for hidden in [accounts, account.order] {
                    #expect(answer.text.contains(hidden) == isWhole, "\(answer.text)")
                }
            }
        }
    }

    @Test("an order that a guest places for a purchase of the account shows nothing of what it gave")
    func orderOfPurchase() async throws {
        try await TestGateway.run { intake, gateway in
            let (guest, account) = (try await User("guest", in: intake), try await User("account", in: intake))
            // Each of them buys without an order.
            var bought: [String] = []
            for user in [guest, account] {
                let proof = IntakeFixture.signedTransaction()
                let receipt = try User.id(
                    try await intake.post(#"{"userId":"\#(user.id)","signedTransaction":"\#(proof)"}"#))
                bought.append("t-plain-\(user.id)")
                try await User.grant(bought[bought.count - 1], by: receipt, in: intake)
            }
            try await Self.merge(guest, into: account, in: intake)
            let (guests, accounts) = (try gateway.token(guest.id), try gateway.token(account.id))
            for (token, user, transaction, state) in [
                (guests, guest, bought[1], "open"), (guests, guest, bought[0], "granted"),
                (accounts, account, bought[1], "granted"), (accounts, account, bought[0], "granted"),
            ] {
                let placed = try await intake.order(
                    #"{"productId":"\#(Self.product)","transactionId":"\#(transaction)"}"#, key: token)
                // The account gets the order that the guest has placed.
                #expect(placed.status == (user.id == guest.id ? 201 : 200), "\(placed.text)")
                let id = try User.id(placed)
                let read = try await intake.get("/v1/orders/\(id)", key: token)
                let list = try await intake.get("/v1/orders?userId=\(user.id)", key: token)
                guard case .array(let listed)? = list["orders"] else {
                    Issue.record("\(list.text)")
                    return
                }
                let found = listed.filter { $0["id"] == .string(id) }
                #expect(found.count == 1)
                for answer in [placed.json, read.json] + found {
                    #expect(answer["state"] == .string(state), "\(answer)")
                    #expect((answer["granted"] != nil) == (state == "granted"), "\(answer)")
                }
            }
        }
    }

    private static func merge(_ guest: User, into account: User, in intake: RunningIntake) async throws {
        let merge = Statements.Merge(UserName(appID: "game", key: guest.id), into: account.id, actor: "backend")
        #expect(try await intake.ledger.database.run(Statements.mergeUsers, merge) == [.merged])
    }
}
