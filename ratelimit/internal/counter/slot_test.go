package counter

import (
	"fmt"
	"testing"

	"github.com/redis/rueidis"

	"gatehouse/shared/testdb"
)

func TestSlotOf(t *testing.T) {
	f := func(key string, want uint16) {
		t.Helper()
		if got := slotOf([]byte(key)); got != want {
			t.Errorf("slot of %q is %d, want %d", key, got, want)
		}
	}
	f("123456789", 0x31c3) // the specification's check value
	f("foo", 12182)
	f("{foo}bar", 12182)
	f("bar{foo}{zap}", 12182)
	f("", 0)
	f("foo{}{bar}", 8363) // an empty tag is none
	f("foo{{bar}}zap", slotOf([]byte("{bar")))
	f("}foo{", slotOf([]byte("}foo{")))
}

// The server's own opinion, on keys of any kind.
func TestSlotOf_server(t *testing.T) {
	kv := testdb.Cluster(t)
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{kv.Nodes[0].Addr()}, DisableCache: true, ForceSingleClient: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	keys := []string{"", "{", "}", "{}", "{}x", "a{b", "a}b{c}d", "\x00{\xff}\r\n", "{{}}", "a{b}{c}"}
	for i := range 50 {
		keys = append(keys, fmt.Sprintf("bench_user_%d_{path_%d}_1700000000", i, i/3))
	}
	for _, key := range keys {
		want, err := c.Do(t.Context(), c.B().ClusterKeyslot().Key(key).Build()).AsInt64()
		if err != nil || int64(slotOf([]byte(key))) != want {
			t.Errorf("slot of %q is %d, the server says %d (%v)", key, slotOf([]byte(key)), want, err)
		}
	}
}
