import Purchases

extension BindingSource {
    /// Why the purchase is this user's, for support.
    var because: String {
        switch self {
        case .orderToken: "its token is an order of the app (row 2)"
        case .userToken: "its token is registered for this user (row 3)"
        case .rememberedToken: "purchases with its token were this user's before (row 3)"
        case .chain: "a renewal or restore of what this user was given before (row 4)"
        case .namedOrder: "the post named this user's order (row 5)"
        case .record: "the record that was posted names this user (row 5a)"
        case .orderOfAnother: "this user had placed an order for it just before, on the same installation (row 6)"
        case .openOrder: "this user had an open order for it (row 7)"
        case .chainOwner: "earlier purchases of its subscription are this user's (row 8)"
        case .lateOrder: "the post named an order that was placed for it afterwards (row 9)"
        case .poster: "who posted it showed Apple's own data (row 10)"
        case .customer: "nobody posted it, and its Apple customer is this user's (row 11)"
        case .shared: "another customer shares it: its chain's owner's, else its poster's (row 0d)"
        case .support: "a person of support decided it"
        case .transfer: "this user showed it, and the app's policy moved it (row 1)"
        }
    }
}
