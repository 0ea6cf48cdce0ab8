import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// Purchases in the wrappings that client libraries, engines and ways to the server put around them.
    @Suite struct Wrappings {
        private struct Wrapping: Sendable {
            let name: String
            /// The repairs that the answer names, without their field.
            let repairs: [String]
            /// Whether the proof is the app receipt.
            var isReceipt = false
            let members: @Sendable (Sale) throws -> [String: Any]
        }

        private static func json(_ members: [String: Any]) throws -> String {
            String(decoding: try JSONSerialization.data(withJSONObject: members), as: UTF8.self)
        }

        private static func base64(_ text: String) -> String { Data(text.utf8).base64EncodedString() }

        private static func percentEncoded(_ text: String) -> String {
            text.replacing("%", with: "%25").replacing("+", with: "%2B").replacing("/", with: "%2F")
                .replacing("=", with: "%3D")
        }

        private static let wrappings: [Wrapping] = [
            Wrapping(name: "the other field", repairs: ["other_field"]) { ["receipt": $0.signedTransaction] },
            Wrapping(name: "the other field, the own one empty", repairs: ["other_field"], isReceipt: true) {
                ["signedTransaction": $0.receipt, "receipt": ""]
            },
            Wrapping(name: "white space", repairs: ["white_space"]) {
                ["signedTransaction": " \($0.signedTransaction)\r\n"]
            },
            Wrapping(name: "quotes", repairs: ["quotes"]) { ["signedTransaction": "\"\($0.signedTransaction)\""] },
            Wrapping(name: "a form's spaces", repairs: ["spaces_for_plus"], isReceipt: true) {
                ["receipt": $0.receipt.replacing("+", with: " ")]
            },
            Wrapping(name: "escapes", repairs: ["backslashes"], isReceipt: true) {
                ["receipt": $0.receipt.replacing("/", with: "\\/") + "\\r\\n"]
            },
            Wrapping(name: "percent-encoding twice", repairs: ["percent_encoding"], isReceipt: true) {
                ["receipt": percentEncoded(percentEncoded($0.receipt))]
            },
            Wrapping(name: "a data URL", repairs: ["data_url"], isReceipt: true) {
                ["receipt": "data:application/octet-stream;base64,\($0.receipt)"]
            },
            Wrapping(name: "base64 of base64", repairs: ["nested_base64"], isReceipt: true) {
                ["receipt": base64($0.receipt)]
            },
            Wrapping(name: "Unity", repairs: ["wrapper"], isReceipt: true) {
                [
                    "receipt": try json([
                        "Store": "AppleAppStore", "TransactionID": $0.purchase.transactionId, "Payload": $0.receipt,
                    ])
                ]
            },
            Wrapping(name: "Flutter, as an object", repairs: ["wrapper"]) {
                [
                    "signedTransaction": [
                        "purchaseID": $0.purchase.transactionId,
                        "verificationData": [
                            "localVerificationData": "{}", "serverVerificationData": $0.signedTransaction,
                            "source": "app_store",
                        ],
                    ]
                ]
            },
            Wrapping(name: "a purchase object as the body", repairs: ["wrapper"]) {
                ["transactionId": $0.purchase.transactionId, "jwsRepresentationIos": $0.signedTransaction]
            },
            Wrapping(name: "a request to verifyReceipt", repairs: ["wrapper"], isReceipt: true) {
                ["receipt": ["receipt-data": $0.receipt, "password": "0123456789abcdef0123456789abcdef"]]
            },
        ]

        private static func body(_ members: [String: Any], user: Any) throws -> Data {
            try JSONSerialization.data(
                withJSONObject: members.merging(["appId": "game", "userId": user]) { $1 })
        }

        private static func repairs(_ answer: Client.Answer) -> [String] {
            (answer.json["repaired"] as? [[String: String]] ?? []).compactMap { $0["repair"] }
        }

        /// Goal: a paid purchase is not refused for its wrapping (F2, F3, F6, F7, F8, F16, F18): it is granted, the
        /// answer names the repair, and the clean post is the same receipt.
        /// Method: a purchase of its own in each wrapping, after a byte order mark, by a user whose id is a number; then
        /// the clean post of the same purchase, which is answered with the same id and no repair.
        @Test func aPurchaseInAnyWrappingIsGranted() async throws {
            try await System.run { system in
                try await system.startAll()
                for (index, wrapping) in Self.wrappings.enumerated() {
                    let user = 9_007_199_254_740_993 + index
                    let sale = try await system.appStore.sell()
                    system.owe(sale, to: "\(user)")
                    let body = Data("\u{FEFF}".utf8) + (try Self.body(wrapping.members(sale), user: user))
                    let answer = try await system.client.postBody(body, wait: 20)
                    #expect(
                        answer.state == "granted" && answer.safeToFinish == true, "\(wrapping.name): \(answer.text)")
                    #expect(Self.repairs(answer) == wrapping.repairs + ["number"], "\(wrapping.name)")
                    let clean = Client.Post(
                        userId: "\(user)", signedTransaction: wrapping.isReceipt ? nil : sale.signedTransaction,
                        receipt: wrapping.isReceipt ? sale.receipt : nil)
                    let again = try await system.submit(clean)
                    #expect(again.id == answer.id && again.json["repaired"] == nil, "\(wrapping.name)")
                }
                let secrets = "select count(*) from receipts where details::text like '%0123456789abcdef%'"
                #expect(try await system.count(secrets) == 0, "the shared secret is stored nowhere")
            }
        }

        /// Goal: a notification's transaction is taken as that, and believed only for its own signature (F18); what is
        /// no purchase at Apple is refused by its name, never safe to finish, and stores nothing.
        /// Method: a genuine notification as a body and as a JWS; a forged transaction inside of a notification; a
        /// notification without a transaction; another store's purchase; proofs that nobody can read; two proofs.
        @Test func notificationsAndTheNearestWrongOnes() async throws {
            try await System.run { system in
                try await system.startAll()
                let store = system.appStore.store
                for (index, isBody) in [true, false].enumerated() {
                    let sale = try await system.appStore.sell()
                    system.owe(sale, to: "u\(index)")
                    let notification = try store.hold(
                        NotificationRequest(
                            app: "game", notificationType: "ONE_TIME_CHARGE",
                            transactionId: sale.purchase.transactionId)
                    ).signedPayload
                    let members = [isBody ? "signedPayload" : "signedTransaction": notification]
                    let answer = try await system.client.postBody(Self.body(members, user: "u\(index)"), wait: 20)
                    #expect(answer.state == "granted" && answer.safeToFinish == true, "\(answer.text)")
                    #expect(Self.repairs(answer).contains("notification"))
                }
                // The notification's own signature counts for nothing.
                let forged = try store.forge(.init(kind: .swappedPayload, app: "game"))
                let payload = try Self.json(["notificationType": "X", "data": ["signedTransactionInfo": forged]])
                let encoded = Self.base64(payload).replacing("=", with: "").replacing("+", with: "-")
                    .replacing("/", with: "_")
                let around = "e30.\(encoded).AA"
                let rejected = try await system.client.postBody(
                    Self.body(["signedTransaction": around], user: "thief"), wait: 20)
                #expect(rejected.state == "rejected" && rejected.safeToFinish == false, "\(rejected.text)")
                let rows = try await system.count("select count(*) from receipts")

                let sale = try await system.appStore.sell()
                let test = try store.hold(NotificationRequest(app: "game", notificationType: "TEST")).signedPayload
                let google = #"{"orderId":"GPA.1","packageName":"com.example.game","purchaseToken":"a.AO-J1"}"#
                let cut = String(sale.receipt.dropLast(sale.receipt.utf8.count % 4 + 3))
                for (members, status, code, field) in [
                    (["signedTransaction": test], 422, "other_signed_data", "signedTransaction"),
                    (["receipt": google], 422, "other_store", "receipt"),
                    (["signedTransaction": google], 422, "other_store", "signedTransaction"),
                    (["receipt": "{}"], 400, "not_base64", "receipt"),
                    (["receipt": cut], 400, "not_base64", "receipt"),
                    (["receipt": "\(sale.receipt)!"], 400, "not_base64", "receipt"),
                    (["signedTransaction": "\(sale.signedTransaction).x"], 400, "not_jws", "signedTransaction"),
                    (["signedTransaction": sale.signedTransaction, "receipt": sale.receipt], 422, "two_proofs", nil),
                ] as [([String: String], Int, String, String?)] {
                    let answer = try await system.client.postBody(Self.body(members, user: "u9"))
                    #expect(answer.status == status && answer.code == code && answer.field == field, "\(answer.text)")
                    #expect(answer.safeToFinish == false)
                }
                #expect(try await system.count("select count(*) from receipts") == rows)
            }
        }
    }
}
