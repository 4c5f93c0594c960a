package keys

import (
	"testing"

	"go.uber.org/goleak"

	"gatehouse/shared/testdb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testdb.IgnoreServers()) }
