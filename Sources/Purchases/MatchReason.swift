/// Why a purchase was matched as it was, one word each. The raw value is the word in SQL and answers.
package enum MatchReason: String, Sendable, CaseIterable {
    // What spoke for the owner.
    case tokenOfOrder = "token_of_order"
    case tokenRegistered = "token_registered"
    case tokenGrantedBefore = "token_granted_before"
    /// The record that was posted names its own user, who is known here.
    case recordNames = "record_names"
    case chainKnown = "chain_known"
    case orderNamed = "order_named"
    case orderOfAnother = "order_of_another"
    case installation
    case orderOpen = "order_open"
    case orderLater = "order_later"
    case orderReserved = "order_reserved"
    case customerKnown = "customer_known"
    /// A person looked into it and decided.
    case supportDecided = "support_decided"
    // What was found beside it.
    /// The token proves the order, but Apple sold another product. The order's product is Apple's from now on (S3-42).
    case productCorrected = "product_corrected"
    /// The order that the token names was bound by another purchase.
    case orderBoundBefore = "order_bound_before"
    case secondCharge = "second_charge"
    /// Bought after the order's `payBy`: the goods of the day of the purchase count.
    case offerLapsed = "offer_lapsed"
    /// Open orders promise different things, and none alone is near the purchase.
    case ordersDiffer = "orders_differ"
    /// Several open orders; only the latest was placed shortly before the purchase.
    case latestAlone = "latest_alone"
    case offerCode = "offer_code"
    case winBackOffer = "win_back_offer"
    case quantityDiffers = "quantity_differs"
    case environmentDiffers = "environment_differs"
    /// The token led to several users.
    case tokenOfSeveral = "token_of_several"
    /// Purchases with the token were given to one other user before.
    case tokenOfAnother = "token_of_another"
    /// The proof shows no token, whether or not the purchase has one (note 2).
    case tokenUnseen = "token_unseen"
    /// The proof does not say whether another customer shares the purchase (row 0d), and Apple was not asked.
    case sharingUnseen = "sharing_unseen"
    /// Apple signed the proof more than an hour before it was posted, and was not asked what is so today: the app has no
    /// credentials for it, or its `confirmWithApple` is `never`.
    case appleUnasked = "apple_unasked"
    /// This server set the purchase's token at Apple: the token says no more than the chain does.
    case tokenWritten = "token_written"
    /// The purchase's chain was another user's before (note 3).
    case chainMoved = "chain_moved"
    /// Bought before `grantFrom`: an entitlement, whose goods were the former system's to give (row 0c).
    case beforeCutover = "before_cutover"
    /// Held: another transaction, bought at another time, was granted under the key of this purchase's ids.
    case keyInUse = "key_in_use"
    /// Another product took the purchase's place: it was paid for, and ended at once (row 0a').
    case endedByUpgrade = "ended_by_upgrade"
    /// Some of the price went back: it was given together with its revocation (row 0a).
    case refundProrated = "refund_prorated"
    /// Held: Apple took it back for a reason that this program does not know.
    case revocationUnknown = "revocation_unknown"
    // Held: the limit in which the purchase found no place (``LimitPlace/Limit``).
    case limitSandboxUser = "limit_sandbox_user"
    case limitSandboxApp = "limit_sandbox_app"
    case limitMakeUpCustomer = "limit_make_up_customer"
    case limitMakeUpUser = "limit_make_up_user"
    // Granted beyond a limit of the catalogue, because the purchase was paid for.
    case limitItemDay = "limit_item_day"
    case limitItemMonth = "limit_item_month"
    case limitItemEver = "limit_item_ever"
    // Row 1, for a purchase that another user was granted.
    case transferred
    /// The policy would move the purchase, but its chain has moved as often as it may.
    case transferLimit = "transfer_limit"
    // Where the post contradicts Apple, or the grant.
    case productDiffers = "product_differs"
    case itemDiffers = "item_differs"
    case priceDiffers = "price_differs"
    /// The order that the post names is not this purchase's: it is another user's or app's, another product's, bound
    /// before, or there is none.
    case orderAside = "order_aside"
    /// Fields of the post make no sense: they are stored as they came, and not used.
    case fieldsDisregarded = "fields_disregarded"
}
