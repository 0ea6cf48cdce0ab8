import AppStoreSimulator
import Foundation
import TestSchemas
import Testing

/// The invariants of one test: what the test knows from the outside, that is, which posts were accepted and what must
/// be granted. After every test it is compared with the database, the App Store's ledger, the feed of events and
/// `makegood check`.
struct SystemInvariants: Sendable {
    /// Receipt ids of accepted posts.
    var accepted: Set<String> = []
    /// The users who may have each transaction, by transaction id. Nothing else may be granted.
    var owed: [String: Set<String>] = [:]
    /// How much of its item one unit gives, by transaction id, where that differs from the configuration file; 0: no
    /// goods.
    var promised: [String: Int] = [:]
    /// Product and environment of what the simulator signed without a sale, by the id of the grant. Its quantity is 1.
    var unsold: [String: (productID: String, environment: String)] = [:]

    private struct Grant: Decodable {
        let transaction_id: String
        let app_id: String
        let environment: String
        let user_id: String
        let product_id: String
        let quantity: Int
        let goods: [Goods]

        struct Goods: Decodable, Equatable {
            let item: String
            let amount: Int
        }
    }

    func hold(in system: System) async throws {
        let grants = try await system.texts("select row_to_json(g)::text from grants g").map {
            try JSONDecoder().decode(Grant.self, from: Data($0.utf8))
        }
        holdAccepted(Set(try await system.texts("select id::text from receipts")))
        holdGrants(grants, in: system)
        try await holdEvents(grants, in: system)
        let inexact = try await system.texts("select app_id || ' ' || day from v_conservation where not is_exact")
        #expect(inexact.isEmpty, "conservation is not exact")
        let days = try await system.count("select count(*) from v_conservation")
        #expect(accepted.isEmpty || days > 0, "the conservation view knows of nothing")
        try await system.command("check", "--full")
    }

    /// I1: every acknowledged post has a row.
    private func holdAccepted(_ rows: Set<String>) {
        #expect(accepted.subtracting(rows).isEmpty, "accepted posts without a row")
    }

    /// I2, I3, I4, I5: exactly what is owed is granted, once, to the right user, as the App Store sold it.
    private func holdGrants(_ grants: [Grant], in system: System) {
        #expect(Set(grants.map(\.transaction_id)).count == grants.count, "a transaction is granted twice")
        #expect(Set(grants.map(\.transaction_id)) == Set(owed.keys), "what is granted is not what is owed")
        let ledger = Dictionary(uniqueKeysWithValues: system.appStore.store.ledger.map { ($0.transactionId, $0) })
        let file = system.file
        for grant in grants {
            let sold = ledger[grant.transaction_id]
            let unsold = self.unsold[grant.transaction_id]
            guard let productID = sold?.productId ?? unsold?.productID else {
                Issue.record("a grant that the App Store never sold: \(grant)")
                continue
            }
            #expect(grant.product_id == productID)
            #expect(grant.environment == sold?.environment.rawValue ?? unsold?.environment)
            let quantity = sold?.quantity ?? 1
            #expect(grant.quantity == quantity)
            let app = file.apps.first { $0.id == grant.app_id }
            let bundleIDs: [String] = [app?.bundleId].compactMap(\.self) + (app?.bundleIdAliases ?? [])
            if let sold { #expect(bundleIDs.contains(sold.app)) }
            let owners = owed[grant.transaction_id, default: []].map(system.stored)
            #expect(owners.contains(grant.user_id), "granted to \(grant.user_id)")
            let goods = (promised[grant.transaction_id] == 0 ? [] : file.goods(of: productID)).map {
                Grant.Goods(
                    item: $0.item, amount: (promised[grant.transaction_id] ?? $0.amount) * quantity)
            }
            #expect(grant.goods == goods)
        }
    }

    /// I17: one event per grant, to its user, in the feed that the app backend reads; and each event fits its schema (B8).
    private func holdEvents(_ grants: [Grant], in system: System) async throws {
        // The feed shows only events older than every running transaction of the server, also those of other databases.
        // The wait covers all events written so far: a confirmation by Apple comes after the grant.
        let written = Set(try await system.texts("select event_id::text from events"))
        try await system.wait("what was told to be in the feed", within: .seconds(30)) {
            try await written.isSubset(of: system.client.events().compactMap { $0["id"] as? String })
        }
        let events = try await system.client.events()
        let schemas = try EventSchemas.all()
        let unfit = try await system.client.eventValues().flatMap { schemas.faults(of: $0) }
        #expect(unfit == [], "an event that its schema in deploy/events does not describe")
        let merged = Set(try await system.texts("select user_id || ' ' || into_user_id from merges"))
        var told: [String: String] = [:]
        var provisional: Set<String> = []
        // A parked receipt may hold no purchase that is known, and an endpoint is nobody's.
        func isOfPurchase(_ type: String) -> Bool { type != "receipt.parked" && !type.hasPrefix("endpoint.") }
        for event in events where isOfPurchase(event["type"] as? String ?? "") {
            guard let type = event["type"] as? String, let id = event["transactionId"] as? String,
                let user = (event["userId"] as? String).map(system.stored)
            else {
                Issue.record("an event that tells of nothing: \(event)")
                continue
            }
            switch type {
            case "purchase.granted":
                #expect(told.updateValue(user, forKey: id) == nil, "a grant was told twice")
                if (event["data"] as? [String: Any])?["provisional"] as? Bool == true { provisional.insert(id) }
            case "purchase.confirmed":
                #expect(provisional.remove(id) != nil, "Apple's word on what was not given on trust, or twice")
                #expect(told[id] == user)
            // Of what was given on trust, or of what Apple took back later.
            case "purchase.revoked", "purchase.reinstated":
                provisional.remove(id)
                // What was imported was granted elsewhere.
                let isImported = (event["data"] as? [String: Any])?["imported"] as? Bool == true
                #expect(told[id] != nil || isImported, "Apple's word on what nobody was told of")
            // What follows for a subscription; the rules are tested for themselves.
            case _ where type.hasPrefix("subscription.") || type == "entitlement.changed": break
            // Told beside the grant: who owned the chain and who owns it now, and what support should look at (P6,
            // P10).
            case "ownership.lost", "ownership.gained", "ownership.disputed": break
            // Told to the owner while the purchase waits, which may change before the grant.
            case "purchase.held": break
            case "purchase.possible_double_charge":
                // A double charge may be found after the user became part of another account.
                #expect(told[id] == nil || told[id] == user || merged.contains("\(told[id] ?? "") \(user)"))
            default: Issue.record("an event of another kind: \(event)")
            }
        }
        #expect(provisional.isEmpty, "given on trust, and no word of Apple's since")
        #expect(Set(events.compactMap { $0["id"] as? String }).count == events.count, "an event id was used twice")
        #expect(told == Dictionary(grants.map { ($0.transaction_id, $0.user_id) }, uniquingKeysWith: { $1 }))
    }
}
