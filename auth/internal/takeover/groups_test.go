package takeover_test

import (
	"maps"
	"testing"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/takeover"
	"gatehouse/shared/must"
)

// The sums over ids on both sides are those of the rows that are read one by one, and show a row that is missing or
// another one.
func TestGroups(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	m := newMove(t, formertest.Newest)
	m.must(t, takeover.Last)
	db, source := m.connect(t)
	defer db.Close()
	defer source.Close()
	must.Succeed(t, source.Inspect(ctx))
	for there, here := range map[string]store.CarriedTable{former.Users: store.CarriedUsers,
		former.Identities: store.CarriedIdentities,
		former.Factors:    store.CarriedFactors, former.Sessions: store.CarriedSessions} {
		reasons, versions := map[string]int64{}, map[int]int64{}
		must.Succeed(t, source.Entries(ctx, there, nil, func(e former.Entry) error {
			if reasons[e.Reason]++; e.Reason == "" {
				versions[e.Version]++
			}
			return nil
		}))
		groups, err := source.Groups(ctx, there, store.SumOfIDs)
		must.Succeed(t, err)
		counted := map[string]int64{}
		for reason, g := range groups {
			counted[reason] = g.Rows
		}
		if !maps.Equal(counted, reasons) || !maps.Equal(groups[""].Versions, versions) {
			t.Errorf("%s: %v %v; want %v %v", there, counted, groups[""].Versions, reasons, versions)
		}
		if here == store.CarriedFactors { // one is left out that only reading it shows
			continue
		}
		same := func() bool {
			t.Helper()
			rows, sum, err := db.CarriedGroup(ctx, here)
			must.Succeed(t, err)
			return rows == groups[""].Rows && sum == groups[""].Sum
		}
		if !same() {
			t.Errorf("%s: the sum here is another one", there)
		}
		table := map[store.CarriedTable]string{store.CarriedIdentities: "identities",
			store.CarriedSessions: "sessions"}[here]
		if table == "" {
			continue
		}
		formertest.Exec(t, m.url, "update "+table+" set id = gen_random_uuid() where id = (select id from "+table+
			" where id not in (select session_id from former_tokens) limit 1)")
		if same() {
			t.Errorf("%s: a row of another id is not noticed", there)
		}
	}
}
