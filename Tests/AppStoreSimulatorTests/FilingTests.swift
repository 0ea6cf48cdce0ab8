import AppStore
import AppStoreSimulator
import Foundation
import NIOHTTP1
import Testing

/// Goal: data that an app's backend sends to Apple is checked as strictly as by Apple, kept, and visible afterwards.
/// Method: real HTTP; each body has one defect.
@Suite struct FilingTests {
    private static let token = "a1b2c3d4-0000-4000-8000-00000000abcd"

    @Test func aFinishIsKept() async throws {
        try await RunningSimulator.with { store in
            let sale = try await store.sold()
            let id = sale.string("transactionId")
            #expect(try await store.control(.GET, "purchases/\(id)").json["finished"] as? Bool == false)
            for _ in 0..<2 {
                let answer = try await store.api(.POST, "v1/transactions/\(id)/finish")
                #expect(answer.status == 200 && answer.body.isEmpty)
            }
            let purchase = try await store.control(.GET, "purchases/\(id)")
            #expect(purchase.json["finished"] as? Bool == true)
            #expect(purchase.int("finishedAt") != nil)
            let records = try await store.control(.GET, "filings").objects("filings")
            #expect(records.map { $0["kind"] as? String } == ["finish", "finish"])
            #expect(records.map { $0["transactionId"] as? String } == [id, id])
            #expect(try await store.control(.GET, "filings?after=1").objects("filings").count == 1)
            #expect(try await store.control(.GET, "filings?limit=1").objects("filings").count == 1)
            for (wrong, refusal) in [
                ("abc", "400 4000006"), (sale.string("appTransactionId"), "400 4000048"), ("4242", "404 4040010"),
            ] {
                #expect(try await store.api(.POST, "v1/transactions/\(wrong)/finish").refusal == refusal)
            }
        }
    }

    @Test func anAccountTokenIsSetAndStays() async throws {
        try await RunningSimulator.with { store in
            let kind = #""type":"Auto-Renewable Subscription""#
            let sale = try await store.sold(kind)
            let id = sale.string("transactionId")
            func set(_ id: String, _ body: String) async throws -> RunningSimulator.Answer {
                try await store.api(.PUT, "v1/transactions/\(id)/appAccountToken", json: body)
            }
            let good = #"{"appAccountToken":"\#(Self.token.uppercased())"}"#
            let answer = try await set(id, good)
            #expect(answer.status == 200 && answer.body.isEmpty)
            func shown(_ id: String) async throws -> SignedTransaction {
                try SignedTransaction(try await store.transactionInfo(id).string("signedTransactionInfo"))
            }
            #expect(try await shown(id).string("appAccountToken") == Self.token)
            let renewal = try await store.sold(#"\#(kind),"originalTransactionId":"\#(id)""#)
            #expect(try await shown(renewal.string("transactionId")).string("appAccountToken") == Self.token)
            // The Apple account is still the same one.
            #expect(try await store.api(.GET, "v2/history/\(id)").payloads().count == 2)
            #expect(renewal.string("appTransactionId") == sale.string("appTransactionId"))
            let record = try #require(store.simulator.filings.first)
            #expect(record.kind == .appAccountToken && record.appAccountToken == Self.token)
            #expect(record.previousAppAccountToken == nil)

            // A token that stood for the account is replaced: its other purchases stay together.
            let first = try await store.sold(#""appAccountToken":"\#(Self.token)","customer":"dora""#)
            let alone = try await store.sold(#""appAccountToken":"b1b2c3d4-0000-4000-8000-00000000abcd""#)
            #expect(try await set(alone.string("transactionId"), good).status == 200)
            _ = try await store.sold(#""appAccountToken":"b1b2c3d4-0000-4000-8000-00000000abcd""#)
            #expect(try await store.api(.GET, "v2/history/\(alone.string("transactionId"))").payloads().count == 2)
            #expect(try await store.api(.GET, "v2/history/\(first.string("transactionId"))").payloads().count == 1)

            for (wrong, body, refusal) in [
                ("abc", good, "400 4000006"), (sale.string("appTransactionId"), good, "400 4000048"),
                (id, #"{"appAccountToken":"x"}"#, "400 4000183"), (id, "{}", "400 4000183"), (id, "", "400 -"),
                (renewal.string("transactionId"), good, "400 4000187"), ("4242", good, "404 4040005"),
            ] {
                #expect(try await set(wrong, body).refusal == refusal, "\(wrong) \(body)")
            }
        }
    }

    @Test func consumptionIsJudgedStrictly() async throws {
        try await RunningSimulator.with { store in
            let sale = try await store.sold()
            let id = sale.string("transactionId")
            let vip = try await store.sold(#""type":"Auto-Renewable Subscription""#).string("transactionId")
            func send(_ id: String, _ body: String) async throws -> RunningSimulator.Answer {
                try await store.api(.PUT, "v2/transactions/consumption/\(id)", json: body)
            }
            func body(_ more: String = "", delivery: String = "DELIVERED") -> String {
                #"{"customerConsented":true,"sampleContentProvided":false,"deliveryStatus":"\#(delivery)"\#(more)}"#
            }
            let good = body(#","consumptionPercentage":50000,"refundPreference":"GRANT_PRORATED""#)
            for accepted in [
                good, body(), body(#","refundPreference":"DECLINE""#),
                body(#","consumptionPercentage":0"#, delivery: "UNDELIVERED_OTHER"),
            ] {
                let answer = try await send(id, accepted)
                #expect(answer.status == 202 && answer.body.isEmpty, "\(accepted)")
            }
            #expect(try await send(vip, body(#","refundPreference":"GRANT_PRORATED""#)).status == 202)
            let kept = store.simulator.filings
            #expect(kept.count == 5)
            #expect(kept[0].kind == .consumption && kept[0].transactionId == id && kept[0].consumption == good)
            for (id, wrong, refusal) in [
                ("abc", good, "400 4000006"), (sale.string("appTransactionId"), good, "400 4000048"),
                ("4242", good, "404 4040010"), (id, "", "400 -"), (id, "[]", "400 -"), (id, "{}", "400 4000035"),
                (id, good.replacing("true", with: "false"), "400 4000035"),
                (id, good.replacing("true", with: "1"), "400 4000035"),
                (id, good.replacing("false", with: "0"), "400 4000041"),
                (id, body(delivery: "LOST"), "400 4000036"),
                (id, body(#","refundPreference":"PLEASE""#), "400 4000044"),
                (id, body(#","refundPreference":1"#), "400 4000044"),
                (id, body(#","refundPreference":"GRANT_PRORATED""#), "400 4000044"),
                (id, body(#","consumptionPercentage":100000,"refundPreference":"GRANT_PRORATED""#), "400 4000044"),
                (vip, body(#","consumptionPercentage":1"#), "400 4000209"),
                // Apple names this error, but nobody has published its number.
                (id, body(#","consumptionPercentage":100001"#), "400 -"),
                (id, body(#","consumptionPercentage":0.5"#), "400 -"),
                (id, body(#","consumptionPercentage":1"#, delivery: "UNDELIVERED_OTHER"), "400 -"),
            ] {
                #expect(try await send(id, wrong).refusal == refusal, "\(wrong)")
            }
            let named = try await send(id, body(#","consumptionPercentage":1"#, delivery: "UNDELIVERED_OTHER"))
            #expect(named.string("errorMessage") == "Undelivered consumption percentage non zero.")
            #expect(store.simulator.filings.count == 5)
        }
    }

    @Test func version1HasAnErrorForEachField() async throws {
        try await RunningSimulator.with { store in
            let id = try await store.sold().string("transactionId")
            let fields = [
                ("customerConsented", "true", "false", "4000035"), ("consumptionStatus", "3", "4", "4000034"),
                ("platform", "1", "3", "4000039"), ("sampleContentProvided", "true", "1", "4000041"),
                ("deliveryStatus", "5", "6", "4000036"), ("appAccountToken", #""""#, #""x""#, "4000033"),
                ("accountTenure", "7", "8", "4000032"), ("playTime", "7", "-1", "4000040"),
                ("lifetimeDollarsPurchased", "7", "8", "4000037"), ("lifetimeDollarsRefunded", "0", "null", "4000038"),
                ("userStatus", "4", "5", "4000042"), ("refundPreference", "3", "4", "4000044"),
            ]
            func send(_ id: String, _ wrong: String? = nil) async throws -> RunningSimulator.Answer {
                let members = fields.map { #""\#($0.0)":\#($0.0 == wrong ? $0.2 : $0.1)"# }
                return try await store.api(
                    .PUT, "v1/transactions/consumption/\(id)", json: "{\(members.joined(separator: ","))}")
            }
            #expect(try await send(id).status == 202)
            for (name, _, _, code) in fields { #expect(try await send(id, name).refusal == "400 \(code)", "\(name)") }
            let door = try await store.sold(#""type":"Non-Consumable""#).string("transactionId")
            #expect(try await send(door).refusal == "400 4000047")
            #expect(store.simulator.filings.map(\.kind) == [.consumptionV1])
        }
    }

    @Test func aScriptedRefusalChangesNothingAndALostAnswerDoes() async throws {
        try await RunningSimulator.with { store in
            let ids = try await store.sold(#""count":3"#).objects("purchases").compactMap {
                $0["transactionId"] as? String
            }
            try await store.control(
                .POST, "faults", #"{"endpoint":"finish","kind":"error","errorCode":5000001,"count":1}"#)
            #expect(try await store.api(.POST, "v1/transactions/\(ids[0])/finish").refusal == "500 5000001")
            try await store.control(.POST, "faults", #"{"endpoint":"finish","kind":"notFound","count":1}"#)
            #expect(try await store.api(.POST, "v1/transactions/\(ids[0])/finish").refusal == "404 4040010")
            try await store.control(.POST, "faults", #"{"endpoint":"finish","kind":"garbage","form":"html","count":1}"#)
            #expect(try await store.api(.POST, "v1/transactions/\(ids[1])/finish").text.hasPrefix("<html>"))
            try await store.control(.POST, "faults", #"{"endpoint":"finish","kind":"reset","count":1}"#)
            await #expect(throws: (any Error).self) { try await store.api(.POST, "v1/transactions/\(ids[2])/finish") }
            #expect(store.simulator.ledger.map { $0.finishedAt != nil } == [false, true, true])
            let calls = store.simulator.calls()
            #expect(calls.map(\.service) == [.finish, .finish, .finish, .finish])
            #expect(calls.map(\.transactionIds) == [[ids[0]], [ids[0]], [ids[1]], [ids[2]]])
            #expect(calls.map(\.status) == [500, 404, 200, nil])

            // With this fault a foreign root signs everything that the endpoint signs.
            try await store.control(.POST, "faults", #"{"endpoint":"history","kind":"foreignRoot"}"#)
            let foreign = try #require(try await store.api(.GET, "v2/history/\(ids[0])").payloads().first)
            #expect(foreign.string("transactionId") == ids[0])
            #expect(try await foreign.defect(root: store.simulator.rootCertificateDER) == "chain")
        }
    }
}
