"""Two sources with the same columns as one stream: what people buy on the web and in the shop, counted together."""

import meander as me

COLUMNS = "user string, price bigint"

web, shop = me.stream(me.testing.source(COLUMNS)), me.stream(me.testing.source("price bigint, user string"))
try:
    web.union(me.stream(me.testing.source("user string")))
except me.InvalidOption as refusal:
    print("refused:", refusal)

spent = web.union(shop).key_by("user").aggregate(total=("sum", "price"), purchases="count")
with me.testing.harness(spent) as h:
    h.batch([{"user": "ann", "price": 3}, {"user": "bob", "price": 5}])
    h.batch([{"user": "ann", "price": 4}])
    totals = {row["user"]: (row["total"], row["purchases"]) for row in h.latest("user")}
print(totals)
assert totals == {"ann": (7, 2), "bob": (5, 1)}
