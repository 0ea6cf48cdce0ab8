import Adversary
import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// Answers of Apple's in shapes and types that Apple does not document, or documents for old receipts only.
    @Suite struct AppleAnswers {
        /// Goal: an answer in another shape loses no purchase and gives no other one (F1, F14, F15, F16).
        /// Method: the App Store answers verifyReceipt with a written text for each receipt: flat, as for iOS 6; flat
        /// with status 21006; lists as one object, by number and as text; numbers for texts; a byte order mark before the
        /// answer.
        /// Each purchase is granted to its poster, once. A receipt of another app, flat, is rejected. The metric names
        /// the fields with another type, and no other text.
        @Test func anAnswerInAnotherShapeIsReadAsWhatItMeans() async throws {
            try await System.run { system in
                async let ingest = system.start(.ingest)
                async let scheduler = system.start(.scheduler)
                let worker = try await system.start(.worker, ["MAKEGOOD_OPERATIONS_PORT": "0"])
                _ = try await (ingest, scheduler)
                let shapes: [(name: String, answer: (Sale) -> String)] = [
                    ("flat", { #"{"status":0,"receipt":{"bid":"com.example.game",\#(fields(of: $0))}}"# }),
                    ("expired", { #"{"status":21006,"receipt":{"bid":"com.example.game",\#(fields(of: $0))}}"# }),
                    (
                        "both",
                        { #"{"status":0,"receipt":{"bid":"com.example.game","in_app":[{\#(fields(of: $0))}]}}"# }
                    ),
                    ("object", { answer(inApp: "{\(fields(of: $0))}") }),
                    ("text", { answer(inApp: quoted("[{\(fields(of: $0))}]")) }),
                    ("object by number", { answer(inApp: #"{"0":{\#(fields(of: $0))}}"#) }),
                    ("object as text", { answer(inApp: quoted("{\(fields(of: $0))}")) }),
                    (
                        "a date as a number",
                        { answer(inApp: "[{\(fields(of: $0, date: String($0.purchase.purchaseDate)))}]") }
                    ),
                    (
                        "a date in words alone",
                        { sale in
                            let entry = fields(of: sale, date: words(sale.purchase.purchaseDate))
                            return answer(inApp: "[{\(entry.replacing("purchase_date_ms", with: "purchase_date"))}]")
                        }
                    ),
                    ("a whole number with a fraction", { answer(inApp: "[{\(fields(of: $0, quantity: "1.0"))}]") }),
                    ("numbers", { answer(inApp: "[{\(fields(of: $0, quantity: "1"))}]", status: #""0""#) }),
                    ("unknown field", { answer(inApp: "[{\(fields(of: $0, quantity: "{}"))}]") }),
                    ("mark", { "\u{FEFF}" + answer(inApp: "[{\(fields(of: $0))}]") }),
                ]
                for (name, text) in shapes {
                    let sale = try await system.appStore.sell()
                    try scripted(text(sale), in: system)
                    system.owe(sale, to: name)
                    let granted = try await system.submitReceipt(sale, user: name, wait: 20)
                    #expect(granted.state == "granted", "\(name)")
                    #expect(granted.safeToFinish == true, "\(name)")
                }
                let other = try await system.appStore.sell()
                try scripted(
                    #"{"status":0,"receipt":{"bid":"com.example.puzzle",\#(fields(of: other))}}"#, in: system)
                let refused = try await system.submitReceipt(other, user: "u1", wait: 20)
                #expect(refused.state == "rejected" && refused.reason == "wrong_app" && refused.safeToFinish == false)

                let operations = "http://127.0.0.1:\(try await worker.port(of: "operations"))"
                let metrics = try await Client(url: operations, credential: nil).get("/metrics").text
                let counted = metrics.split(separator: "\n").filter {
                    $0.hasPrefix("makegood_apple_field_mismatches_total{")
                }
                let names = counted.compactMap { $0.firstMatch(of: /field="([^"]*)"/).map { String($0.1) } }
                #expect(Set(names).isSuperset(of: ["in_app", "status", "quantity"]))
                #expect(Set(names).isSubset(of: ["in_app", "status", "quantity", "purchase_date_ms"]))
            }
        }

        /// Goal: an answer that this version does not know, or cannot judge by, is no proof against the purchase (F15).
        /// Method: for each purchase one such answer: a status that Apple does not document, 21000, 21006 without data,
        /// a receipt that names no app, an entry without a readable id or date. None is rejected; when Apple answers as
        /// documented, each is granted.
        @Test func anAnswerThatNobodyKnowsLosesNothing() async throws {
            try await System.run { system in
                try await system.startAll()
                let answers: [(Sale) -> String] = [
                    { _ in #"{"status":29999}"# }, { _ in #"{"status":21000}"# }, { _ in #"{"status":21006}"# },
                    { #"{"status":0,"receipt":{"bid":{},\#(fields(of: $0))}}"# },
                    { answer(inApp: "[{\(fields(of: $0))},{\(fields(of: $0, id: "2.5"))}]") },
                    { answer(inApp: "[{\(fields(of: $0, date: "{}"))}]") }, { _ in answer(inApp: "7") },
                ]
                for (index, text) in answers.enumerated() {
                    let sale = try await system.appStore.sell()
                    try scripted(text(sale), in: system)
                    system.owe(sale, to: "u\(index)")
                    #expect(try await system.submitReceipt(sale, user: "u\(index)").safeToFinish == false)
                    try await system.settleDebts()
                }
                #expect(try await system.count("select count(*) from receipts where state = 'rejected'") == 0)
            }
        }

        /// Goal: signed data with fields of other types, or without an environment, are purchases (F15, F23).
        /// Method: Apple's signed data of four sales, signed again with numbers as text, a flag as 0, a date as text
        /// and an object as a quantity; with ids as numbers; and without an environment, in production and, for a
        /// tester, in the sandbox. Each is granted, the last two after one call and two calls.
        @Test func signedDataWithOtherTypesAndWithoutEnvironmentAreJudged() async throws {
            try await System.run(.init(timeScale: 0.5)) { system in
                try await system.startAll()
                func submit(_ sale: Sale, as user: String, _ change: (inout [String: Any]) -> Void) async throws {
                    let jws = try resigned(sale, in: system, change)
                    system.owe(sale, to: user)
                    let answer = try await system.submit(.init(userId: user, signedTransaction: jws), wait: 20)
                    #expect(answer.state == "granted", "\(user)")
                }
                let sales = try await system.appStore.sell(3)
                try await submit(sales[0], as: "u1") {
                    $0["price"] = "990"
                    $0["isUpgraded"] = 0
                    $0["purchaseDate"] = String(sales[0].purchase.purchaseDate)
                    $0["quantity"] = [String: Any]()
                }
                try await submit(sales[1], as: "u2") {
                    $0["transactionId"] = Int64(sales[1].purchase.transactionId)
                    $0["originalTransactionId"] = Int64(sales[1].purchase.originalTransactionId)
                }
                try await submit(sales[2], as: "u3") { $0["environment"] = nil }
                let sandbox = try await system.appStore.sell { $0.environment = .sandbox }
                try await submit(sandbox, as: "tester") { $0["environment"] = nil }
                #expect(system.appStore.calls(about: sales[2]).map(\.environment) == [.production])
                #expect(system.appStore.calls(about: sandbox).map(\.environment) == [.production, .sandbox])
            }
        }

        /// The sale's signed data with another payload, signed by the App Store.
        private func resigned(
            _ sale: Sale, in system: System, _ change: (inout [String: Any]) -> Void
        ) throws -> String {
            let part = sale.signedTransaction.split(separator: ".")[1]
                .replacing("-", with: "+").replacing("_", with: "/")
            let padded = String(part) + String(repeating: "=", count: (4 - part.count % 4) % 4)
            let bytes = try #require(Data(base64Encoded: padded))
            var payload = try #require(try JSONSerialization.jsonObject(with: bytes) as? [String: Any])
            change(&payload)
            let changed = try JSONSerialization.data(withJSONObject: payload)
            return try system.appStore.store.sign(Array(changed))
        }

        /// Has the next call of verifyReceipt answered with this text.
        private func scripted(_ text: String, in system: System) throws {
            var fault = FaultRequest(.status, on: .verifyReceipt, count: 1)
            fault.status = 200
            fault.body = text
            try system.appStore.store.fault(fault)
        }

        private func answer(inApp: String, status: String = "0") -> String {
            #"{"status":\#(status),"environment":"Production","receipt":{"bundle_id":"com.example.game","#
                + #""in_app":\#(inApp)}}"#
        }

        /// A date as verifyReceipt writes it beside its milliseconds.
        private func words(_ milliseconds: Int64) -> String {
            let text = Date(timeIntervalSince1970: Double(milliseconds) / 1000).formatted(.iso8601)
            return "\"\(text.replacing("T", with: " ").replacing("Z", with: " Etc/GMT"))\""
        }

        private func quoted(_ text: String) -> String {
            "\"" + text.replacing("\"", with: "\\\"") + "\""
        }

        /// The members of an entry of verifyReceipt's, about this purchase.
        private func fields(
            of sale: Sale, id: String? = nil, quantity: String = #""1""#, date: String? = nil
        ) -> String {
            let purchase = sale.purchase
            return #""transaction_id":\#(id ?? "\"\(purchase.transactionId)\""),"product_id":"\#(purchase.productId)","#
                + #""original_transaction_id":"\#(purchase.originalTransactionId)","quantity":\#(quantity),"#
                + #""purchase_date_ms":\#(date ?? "\"\(purchase.purchaseDate)\"")"#
        }
    }
}
