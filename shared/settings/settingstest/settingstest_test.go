package settingstest

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/shared/settings/settingstest/roomtest"
)

type config struct {
	// The address of the first.
	First roomtest.Settings `envPrefix:"A_"`
	// The address of the second.
	Second roomtest.Settings `envPrefix:"B_"`
	// Its own.
	Own string `env:"OWN" envDefault:"x" restart:"true"`
	// In another's table.
	Guest string `env:"GUEST" table:"Other"`
	// Address in another's table.
	Guests roomtest.Settings `envPrefix:"G_" table:"Other"`
}

// Rows of a struct of another package have its comments, and each use its prefix.
func TestSettingRows(t *testing.T) {
	got := settingRows(t, table{reflect.TypeFor[config](), "P_", ""}, "", func(name string) string {
		return "N_" + name
	},
		comments{})
	want := []row{
		{"", "| `N_P_A_ADDR` |  | The address of the first. |\n"},
		{"", "| `N_P_A_SIZE` | `10` | How many there are. |\n"},
		{"", "| `N_P_B_ADDR` |  | The address of the second. |\n"},
		{"", "| `N_P_B_SIZE` | `10` | How many there are. |\n"},
		{"", "| `N_P_OWN` | `x` | Its own. **R** |\n"},
		{"Other", "| `N_P_GUEST` |  | In another's table. |\n"},
		{"Other", "| `N_P_G_ADDR` |  | Address in another's table. |\n"},
		{"Other", "| `N_P_G_SIZE` | `10` | How many there are. |\n"},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(row{})); d != "" {
		t.Error(d)
	}
}
