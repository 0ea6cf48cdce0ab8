extension Statements {
    /// What the system before this one has given of a purchase: a select of `user_id`, `app_id` and `environment`, one row
    /// at most, for a lateral join.
    ///
    /// By its id, or as the same purchase under another one (`purchase_key`; Ownership, keys): a restore has the
    /// original transaction of what was imported; one period on another device has its chain and its time. To the second, which is
    /// all that many systems kept, and shorter than any period.
    ///
    /// Most deployments import nothing, and then nothing is looked up.
    ///
    /// - Parameters:
    ///   - row: has `original`, `purchase_key`, `environment` and `purchased_at`.
    ///   - id: the row's column with the transaction id.
    static func importedGrant(_ row: String, id: String = "id") -> String {
        """
        (select \(importedPerson) as user_id, app_id, environment from imported_grants
              where (select true from imported_grants limit 1) and transaction_id = \(row).\(id))
            union all
            (select \(importedPerson), app_id, environment from imported_grants
              where (select true from imported_grants limit 1) and original_transaction_id = \(row).original
                and (\(row).purchase_key = \(row).environment || '/purchase/' || \(row).original
                  or date_trunc('second', purchased_at) = date_trunc('second', \(row).purchased_at)))
            limit 1
        """
    }

    /// Who the user of an imported purchase is by now.
    private static let importedPerson = person("imported_grants.user_id", of: "imported_grants.app_id")
}
