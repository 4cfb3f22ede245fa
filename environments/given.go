package environments

import (
	"math"
	"path/filepath"
	"slices"
	"strconv"
)

// imageDebian is the only named image of nspawn machines; all others are folders.
const imageDebian = "debian"

// checkGiven refuses values that the driver does not support, in the provider's names. Only files are checked: a stored
// environment must stay readable if a driver begins to refuse a value.
func (c checker) checkGiven() {
	for i, r := range c.Roles {
		c.given(spot{i, "flavor"}, r, "flavor", r.Flavor, c.Flavors)
		c.given(spot{i, "image"}, r, "image", r.Image, c.Images)
		for j, network := range r.Networks {
			c.given(spot{i, "networks." + strconv.Itoa(j)}, r, "network", network, c.Networks)
		}
	}
}

func (c checker) given(at spot, r Role, what, symbol string, words map[string]string) {
	word, mapped := words[symbol]
	switch {
	case symbol == "" || !mapped && len(words) > 0: // checkMapped reports a symbol without an entry
		return
	case !mapped:
		word = symbol
	}
	asked := what + " " + quoted(symbol) + " of role " + quoted(r.Name)
	if mapped && word != symbol {
		asked += ", which stands for " + quoted(word)
	}
	c.flaw(at, asked, notGiven(c.Driver(), what, word))
}

// NotGiven returns the first value of an order, in the provider's names, that the driver does not support. It returns
// nil if there is none, or if only the provider knows.
func NotGiven(driver, flavor, image string, networks []string) *Error {
	var asked [][2]string
	if flavor != "" {
		asked = append(asked, [2]string{"flavor", flavor})
	}
	if image != "" {
		asked = append(asked, [2]string{"image", image})
	}
	for _, network := range networks {
		asked = append(asked, [2]string{"network", network})
	}
	for _, a := range asked {
		if flaw := notGiven(driver, a[0], a[1]); flaw != nil {
			return &Error{Problem: a[0] + " " + quoted(a[1]) + ": " + flaw.Problem, Advice: flaw.Advice}
		}
	}
	return nil
}

func notGiven(driver, what, word string) *Error {
	switch driver + " " + what {
	case "local flavor":
		if _, ok := LocalSize(word); !ok {
			return &Error{Problem: "it is no size, and the flavor of a local machine is how much it may write", Advice: "use one such as 512M or 2G, or leave `flavor` away"}
		}
	case "local image":
		return &Error{Problem: "a local machine is a view of the host", Advice: "leave `image` away"}
	case "local network":
		return &Error{Problem: "local machines share the network of the host", Advice: "leave `networks` away"}
	case "nspawn flavor":
		return &Error{Problem: "machines of nspawn have no flavors", Advice: "leave `flavor` away"}
	case "nspawn image":
		if word != imageDebian && !filepath.IsAbs(word) {
			return &Error{Problem: "there is no image of that name", Advice: "use " + imageDebian + ", or the absolute path of a root folder"}
		}
	case "nspawn network":
		return &Error{Problem: "machines of nspawn are on the bridge that `provider` names", Advice: "leave `networks` away"}
	}
	return nil
}

// LocalSize returns how many bytes a local machine of a flavor may write; 0 is the default.
func LocalSize(flavor string) (bytes int64, ok bool) {
	if flavor == "" {
		return 0, true
	}
	digits, shift := flavor, 0
	if i := slices.Index([]byte("KMGT"), flavor[len(flavor)-1]); i >= 0 {
		digits, shift = flavor[:len(flavor)-1], 10*(i+1)
	}
	if digits == "" || digits[0] < '1' || digits[0] > '9' { // ParseInt accepts signs
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > math.MaxInt64>>shift {
		return 0, false
	}
	return n << shift, true
}
