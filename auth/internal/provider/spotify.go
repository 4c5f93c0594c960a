package provider

import (
	"context"
	"encoding/json"
)

// spotifyMore takes the largest picture, the first of equal ones.
func spotifyMore(_ context.Context, _ *signIn, me jsonObject, d *Profile) error {
	side := func(v any) int64 {
		n, _ := v.(json.Number)
		i, _ := n.Int64() // null where Spotify doesn't know
		return i
	}
	largest, found := int64(-1), ""
	me.eachObject("images", func(i jsonObject) {
		if area := side(i["width"]) * side(i["height"]); area > largest {
			largest, found = area, i.textAt("url")
		}
	})
	d.set("picture avatar_url", found)
	return nil
}
