// From a folder rather than a server a page may not read its index: nothing to search with.
if (location.protocol === "file:") document.querySelectorAll('[for="__search"]').forEach((button) => (button.style.visibility = "hidden"));
// Sliders look up values that the planner computed when the site was built.
for (const slider of document.querySelectorAll(".slider")) {
  const table = JSON.parse(slider.dataset.table);
  const inputs = [...slider.querySelectorAll("input")];
  const show = () => {
    let place = 0;
    inputs.forEach((input, axis) => {
      place = place * table.axes[axis].length + Number(input.value);
      input.previousElementSibling.textContent = table.axes[axis][input.value];
    });
    slider.querySelector("p").textContent = table.values[place];
  };
  slider.addEventListener("input", show);
  show();
}
